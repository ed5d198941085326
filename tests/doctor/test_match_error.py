"""--match-error: known messages are recognised however they are pasted, and nothing is seen in healthy texts."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from portagemm.doctor import match
from portagemm.doctor.cuda_codes import CUDA_CODES, describe


def _load(name: str) -> ModuleType:
    """A module beside this one (the tests are no package)."""
    full = f"doctor_{name}"
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, Path(__file__).with_name(f"{name}.py"))
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[full] = module
        spec.loader.exec_module(module)
    return sys.modules[full]


CASES = _load("message_cases")


@pytest.mark.quick
@pytest.mark.parametrize(
    "case", CASES.EXCERPTS, ids=lambda case: f"{case.report}-{case.message}-{abs(hash_(case.text))}"
)
def test_excerpt_is_recognised(case: object) -> None:
    found = match.find(case.text)  # type: ignore[attr-defined]
    ids = [item.message.id for item in found]
    assert case.message in ids[:3], f"found {ids}"  # type: ignore[attr-defined]


def hash_(text: str) -> int:
    """The same in every process, unlike hash()."""
    return sum(ord(character) * (index + 1) for index, character in enumerate(text)) % 10007


@pytest.mark.quick
@pytest.mark.parametrize(
    "text", CASES.HEALTHY, ids=[f"healthy{index}" for index in range(len(CASES.HEALTHY))]
)
def test_nothing_in_healthy_text(text: str) -> None:
    assert [(item.message.id, item.excerpt) for item in match.find(text)] == []


PHRASES = [(message, phrase) for message in match.MESSAGES for phrase in message.phrases]


@pytest.mark.quick
@pytest.mark.parametrize(
    ("prefix", "join"),
    [
        ("", " "),
        ("[rank12]: ", "\n[rank12]: "),
        ("(Worker_TP0 pid=71)   ", "\n(Worker_TP0 pid=71)   "),
        ("2026-04-01T10:11:12.123Z stderr F ", "\n2026-04-01T10:11:12.124Z stderr F "),
        ("Nov 03 01:02:03 node-1 job[77]: ", "\nNov 03 01:02:03 node-1 job[77]: "),
        ("E       ", "\nE       "),
        ("│ ", "   │\n│ "),
        ("[   12.345678] ", "\n[   12.345999] "),
        ("> ", "\n> "),
        ("\x1b[31m", "\x1b[0m\n\x1b[31m"),
        ("web-1  | ", "\nweb-1  | "),
    ],
)
def test_phrases_survive_prefixes_and_wrapping(prefix: str, join: str) -> None:
    for message, phrase in PHRASES:
        text = prefix + join.join(phrase.split(" "))
        likely = [item.message.id for item in match.find(text) if item.confidence == "likely"]
        assert message.id in likely, text


@pytest.mark.quick
def test_phrases_survive_a_wrap_within_a_word_and_other_quotes() -> None:
    for message, phrase in PHRASES:
        text = "\n".join(phrase[at : at + 11] for at in range(0, len(phrase), 11)).replace("'", "’")
        assert message.id in [item.message.id for item in match.find(text)], text
        assert message.id in [item.message.id for item in match.find(phrase.upper())], phrase


@pytest.mark.quick
def test_phrases_survive_cutting() -> None:
    """Three quarters of a phrase are enough at either end; it is then only possible."""
    shortest = match._shortest(match.MESSAGES)
    for message, phrase in PHRASES:
        glued = len(match.glue(phrase))
        keep = max((3 * len(phrase) + 3) // 4, len(phrase) * (shortest[match.glue(phrase)] + 2) // glued)
        if keep < len(phrase):
            for text in (phrase[:keep] + "...", "x = 1\n" + phrase[:keep], phrase[:keep] + "…\nnext line"):
                assert message.id in [item.message.id for item in match.find(text)], text
        if len(phrase) > 24:
            assert message.id in [item.message.id for item in match.find(phrase[len(phrase) // 4 :])], phrase


@pytest.mark.quick
def test_a_cut_phrase_is_possible_and_a_whole_one_likely() -> None:
    (cut,) = match.find("Error: system has unsupported displ...")
    assert (cut.message.id, cut.confidence) == ("driver-mismatch-803", "possible")
    whole = match.find("one\ntwo: system has unsupported display driver / cuda driver\n combination")
    assert [(m.message.id, m.confidence, m.line) for m in whole] == [("driver-mismatch-803", "likely", 2)]
    assert whole[0].excerpt == "system has unsupported display driver / cuda driver combination"


@pytest.mark.quick
def test_what_two_messages_share_is_told_of_neither() -> None:
    """ "Failed to initialize NVML: " begins three messages: cut there, it is none of them."""
    assert match.find("Failed to initialize NVML: ...") == []


@pytest.mark.quick
@pytest.mark.parametrize("code", sorted(CUDA_CODES))
def test_code_is_found_by_both_names_and_by_number(code: int) -> None:
    known = CUDA_CODES[code]
    texts = [name for name in (known.runtime, known.driver) if name]
    texts += [f"cuInit(0) returned {code}", f"CUDA error code={code}", f"cudaMalloc failed with error {code}"]
    texts += [f"Cuda failure {code} 'x'", f"cudaMemcpy(dst, src, n) = {code}"]
    texts += [f"cuda_check: status {code}, giving up"] if code >= 200 else []
    for text in texts:
        assert list(match.cuda_codes(match.glue_case(text))) == [code], text
    for text in (
        f"CUDA error {code}1",
        f"served {code} files",
        f"CUDA error {code} MiB",
        f"CUDA error {code}.5",
    ):
        assert match.cuda_codes(match.glue_case(text)) == {}, text
    if not 802 <= code <= 810:
        assert match.cuda_codes(f"error{code}") == {}
    assert f"{code} (" in describe(code)
    assert describe(4242) == "4242"


@pytest.mark.quick
def test_table_is_complete() -> None:
    ids = [message.id for message in match.MESSAGES]
    assert len(ids) == len(set(ids))
    for message in match.MESSAGES:
        assert message.phrases or message.patterns, message.id
        assert message.remedies and message.sources and message.means, message.id
        assert message.vendor in ("nvidia", "amd", "any")
        for remedy in message.remedies:
            assert not remedy.command or ("sudo " in remedy.command) == remedy.root, (
                message.id,
                remedy.command,
            )
        for source in message.sources:
            assert re.fullmatch(r"https://\S+|[\w.-]+/[\w.-]+#\d+", source), source
        for pattern in (*message.patterns, *message.weak, *message.unless):
            assert not re.search(
                r"\[[^\]]*? [^\]]*\](?![?*{+])", re.sub(r"\[Errno \d+\\\]", "", pattern)
            ) or ("," in pattern or "/" in pattern), pattern


@pytest.mark.quick
def test_text_is_read_from_a_file(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_bytes(
        b"\xff\xfebad bytes\nCUDA error: no kernel image is available for execution on the device\n"
    )
    log.write_text("CUDA error: no kernel image is available for execution on the device\n", "utf-16")
    assert [item.message.id for item in match.find(match.read(str(log)))] == ["no-kernel-image"]
    log.write_bytes(b"caf\xe9 \x00\nsystem not yet initialized\n")
    assert [item.message.id for item in match.find(match.read(str(log)))] == ["fabric-not-ready-802"]
    assert match.read("system not yet initialized") == "system not yet initialized"
    assert match.read(str(tmp_path)) == str(tmp_path)


@pytest.mark.quick
def test_ends_of_a_large_file_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(match, "_HALF", 100)
    log = tmp_path / "log.txt"
    log.write_text("begin\n" + "x" * 1000 + "\nend\n")
    text = match.read(str(log))
    assert text.startswith("begin") and text.endswith("end\n") and len(text) < 210


def test_large_text_is_quick() -> None:
    """Megabytes of noise take seconds, not minutes: no pattern backtracks without bound, and what is said again
    and again is read a few times. The one line that matters is found in the middle of it."""
    import time

    lines = [
        f"[rank{i % 8}]: 2026-01-01 10:00:{i % 60:02} step {i} CUDA cuda cudaMalloc NCCL hipError error /tmp/x\n"
        for i in range(40_000)
    ]
    lines[20_000:20_000] = [
        "[rank3]: no kernel image is available for\n",
        "[rank3]: execution on the device\n",
    ]
    start = time.monotonic()
    (found,) = match.find("".join(lines))
    assert time.monotonic() - start < 20
    assert (found.message.id, found.confidence, found.line) == ("no-kernel-image", "likely", 20_001)


@pytest.mark.quick
def test_different_words_are_all_read_in_a_large_text() -> None:
    """Of lines that are alike some are left out; a line of other words never is."""
    words = "".join(
        f"{'abcdefghij'[i % 10]}{'klmnopqrst'[i // 10 % 10]}{'uvwxyz'[i // 100 % 6]} loss {i}\n" * 9
        for i in range(900)
    )
    assert len(words) > match._SMALL
    assert [m.message.id for m in match.find(words + "system not yet initialized\n" + words)] == [
        "fabric-not-ready-802"
    ]
