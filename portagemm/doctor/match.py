"""Finds known error messages in a text: a log, a traceback, a line of a bug report.

Logs reach people wrapped at the terminal's width, with prefixes of launchers and loggers before every line, in
boxes, cut off, and with quotes of another kind. So a text is compared without its prefixes and without any
white space, and a phrase may lack its end or its beginning.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TextIO

from portagemm.doctor.cuda_codes import CUDA_CODES
from portagemm.doctor.known import KnownMessage
from portagemm.doctor.messages_amd import AMD
from portagemm.doctor.messages_nvidia import NVIDIA
from portagemm.doctor.messages_system import SYSTEM

#: All known messages.
MESSAGES: tuple[KnownMessage, ...] = NVIDIA + AMD + SYSTEM

#: Bytes read from each end of a large file.
_HALF = 4 << 20
#: Characters up to which a text is also read with what looks like prefixes.
_SMALL = 1 << 16
#: Characters of a line; a longer one is cut into several, for what looks at lines looks at all that follows.
_LONG_LINE = 1 << 16
#: Characters from the end of a line in which it is looked for a mark that it was cut off.
_MARK = 200
#: Lines that differ in digits alone are read so many times in a larger text.
_ALIKE = 4


@dataclass(frozen=True)
class Match:
    """A known message found in a text.

    Attributes:
        message: what is known of it.
        confidence: "likely", or "possible" for a text cut off or shared with other failures.
        excerpt: the place, as the text has it, with white space joined.
        line: its first line, from 1.
    """

    message: KnownMessage
    confidence: str
    excerpt: str
    line: int


#: What launchers, loggers and terminals put before a line; taken off again and again until none is left.
_PREFIX = re.compile(
    r"""^(?:
        \s+
      | [|│┃║>*]+\s*                                    # boxes, quotations
      | (?:E|F|W|I)\s{2,}                               # pytest
      | \[?rank\s?\d+\]?\s*:\s*                         # torchrun
      | \[(?:default\d+|\d+,\d+(?:,\d+)?)\](?:<\w+>)?:? # torchelastic, Open MPI
      | \d{1,5}:\s+(?=\D)                               # srun --label
      | \#\d+\s+\d+\.\d+\s                              # BuildKit
      | \(\w+[^()]{0,60}\bpid=\d+[^()]{0,60}\)          # Ray, vLLM
      | \[\s*\d+\.\d{3,}\]                              # kernel log
      | \[?\d{4}[-/]\d\d[-/]\d\d[T\ _]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?
      | \[?(?:\d\d-\d\d\s)?\d\d:\d\d:\d\d(?:[.,]\d+)?\]?
      | \[\w+\.(?:py|cc|cpp|cu|go):\d+\]\s
      | (?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)\s(?=[A-Z])
      | (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\s+\d+\s\d\d:\d\d:\d\d\s\S+\s(?:\S+?(?:\[\d+\])?:)?  # syslog
      | (?:stdout|stderr)\s[FP]\s                       # Kubernetes
      | [\[(]?(?:DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)[\])]?\s*[:|-]?\s+
      | [A-Za-z][\w.-]*\s+\|\s                          # docker compose
    )""",
    re.VERBOSE,
)
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b\n]{0,1000}\x07|[\x00-\x08\x0b-\x1f\x7f]")
_CUT = re.compile(
    r"(?:\.{3,}|…|\[(?:truncated|snip|cut)\]|<truncated>|--More--)\s*[|│┃║]?\s*$", re.IGNORECASE
)
_QUOTES = str.maketrans(
    {"‘": "'", "’": "'", "‚": "'", "“": '"', "”": '"', "„": '"', "«": '"', "»": '"', "`": "'"}
)
_DIGITS = re.compile(r"\d+")
_ESCAPED = re.compile(r"\\[nt]")

_NAMES = {name: code.code for code in CUDA_CODES.values() for name in (code.runtime, code.driver) if name}
_CODE_NAME = re.compile("|".join(sorted(map(re.escape, _NAMES), key=len, reverse=True)))
#: A word that says error, and a number: enough near the name of CUDA.
_SAID = re.compile(
    r"(?<!exit)(?<!exited)(?<!http)(?P<word>error|errno|err|failure|failed|code|returned|returns|status|result|rc)"
    r"\W{0,6}(?:code|with(?:error)?(?:code)?)?\W{0,4}(?<![\d.])(?P<code>\d{1,3})(?![\d.]*\d|%|[kmg]i?b)",
    re.IGNORECASE,
)
#: A call of CUDA's and the number it gave.
_GAVE = re.compile(
    r"cu(?:da)?[A-Z]\w*(?:\([^()]{0,60}\))?\W{0,3}(?:=|->|:|returned|returns|gave|failed(?:with)?(?:error)?(?:code)?)"
    r"\W{0,3}(?P<code>\d{1,3})(?![\d.]*\d|%|[kmgKMG]i?[bB])"
)
_CUDA_WORD = re.compile(r"cuda|cu[A-Z][a-z]", re.ASCII)
#: Numbers below this are common: they count only after an outright error close by.
_COMMON_BELOW = 200


def cuda_codes(glued: str) -> dict[int, tuple[int, int]]:
    """CUDA's error numbers in a text without white space, each with its first place.

    A number counts near the name of CUDA or of one of its functions; 802 to 810 are rare enough alone.
    """
    found: dict[int, tuple[int, int]] = {}
    for match in (*_CODE_NAME.finditer(glued), *_GAVE.finditer(glued)):
        code = int(match["code"]) if "code" in match.re.groupindex else _NAMES[match[0]]
        if code in CUDA_CODES:
            found.setdefault(code, match.span())
    for match in _SAID.finditer(glued):
        code, word = int(match["code"]), match["word"].lower()
        if code in found or code not in CUDA_CODES:
            continue
        outright = word in ("error", "errno", "failure", "failed")
        reach = 90 if code >= _COMMON_BELOW else 24 if outright else 0
        before = glued[max(0, match.start() - reach) : match.start()].rpartition(";")[2]
        named = _CUDA_WORD.search(before.replace("CUDA", "cuda").replace("Cuda", "cuda")) if reach else None
        if named or (802 <= code <= 810 and word in ("error", "failure")):
            found[code] = match.span()
    return found


class _Text:
    """A text without white space and prefixes, and the way back to the original."""

    def __init__(self, text: str, prefixes: bool = True) -> None:
        self.original = _COLOUR.sub("", text)
        glued: list[str] = []
        self.positions: list[int] = []  # of each glued character in the original
        self.ends: list[int] = []  # glued length at the end of each line
        self.starts: list[int] = []  # and at its beginning
        self.cut: list[bool] = []  # whether the line says that it was cut off
        self.lines: list[int] = []  # where each line begins in the original
        offset = 0
        seen: Counter[str] = Counter()
        large = len(self.original) > _SMALL
        for line in _lines(self.original):
            self.lines.append(offset)
            self.starts.append(len(self.positions))
            if large:  # a log of many megabytes says few things, often
                kind = _DIGITS.sub("0", line)
                seen[kind] += 1
                if seen[kind] > _ALIKE:
                    self.ends.append(len(self.positions))
                    self.cut.append(False)
                    offset += len(line)
                    continue
            last = max(0, len(line) - _MARK)
            cut = _CUT.search(line[last:])
            end = last + cut.start() if cut else len(line.rstrip().rstrip("|│┃║"))
            begin = _after_prefixes(line) if prefixes else 0
            plain = _ESCAPED.sub("  ", line[begin:end])  # a log within JSON has its line breaks escaped
            for index, character in enumerate(plain):
                if not character.isspace() and character != "\u00ad":
                    glued.append(character)
                    self.positions.append(offset + begin + index)
            self.ends.append(len(self.positions))
            self.cut.append(cut is not None)
            offset += len(line)
        self.glued = "".join(glued).translate(_QUOTES)
        self.codes = cuda_codes(self.glued)
        self.folded = self.glued.lower() if len(self.glued.lower()) == len(self.glued) else self.glued

    def excerpt(self, begin: int, end: int) -> tuple[str, int]:
        """The original text of a glued range, and the number of its line."""
        first, last = self.positions[begin], self.positions[max(begin, end - 1)]
        words = " ".join(self.original[first : last + 1].split())
        shown = words if len(words) <= 200 else words[:197] + "..."
        return shown, bisect_right(self.lines, first)


def _lines(text: str) -> Iterator[str]:
    for line in text.splitlines(keepends=True):
        for begin in range(0, len(line), _LONG_LINE):
            yield line[begin : begin + _LONG_LINE]


def _after_prefixes(line: str) -> int:
    begin = 0
    while begin < len(line):
        found = _PREFIX.match(line[begin : begin + 400])
        if not found or not found.end():
            break
        begin += found.end()
    return begin


def glue_case(text: str) -> str:
    """A text as patterns see it."""
    return "".join(text.split()).translate(_QUOTES)


def glue(text: str) -> str:
    """A phrase as it is compared."""
    return glue_case(text).lower()


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.replace(" ", r"\s*"), re.IGNORECASE)


@cache
def _shortest(messages: tuple[KnownMessage, ...]) -> dict[str, int]:
    """Glued phrase -> how many of its first characters tell it from the phrases of all other messages."""
    owners = sorted((glue(phrase), m.id) for m in messages for phrase in m.phrases)
    shortest = {}
    for phrase, owner in owners:
        shared = max(
            (_shared(phrase, other) for other, its in owners if its != owner),
            default=0,
        )
        shortest[phrase] = max(12, shared + 4)
    return shortest


def _shared(a: str, b: str) -> int:
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return index
    return min(len(a), len(b))


def find(text: str, messages: Iterable[KnownMessage] = MESSAGES) -> list[Match]:
    """The known messages in a text: likely ones first, each in the order of the text, each message once."""
    known = tuple(messages)
    shortest = _shortest(known)
    readings = [_Text(text)]
    if len(text) < _SMALL:  # what looks like a prefix may be the message's own: "libcuda.so.\n1: cannot open"
        readings.append(_Text(text, prefixes=False))
    found = []
    for message in known:
        matches = [match for reading in readings if (match := _find(message, reading, shortest)) is not None]
        if matches:
            found.append(min(matches, key=lambda match: match.confidence != "likely"))
    return sorted(found, key=lambda match: (match.confidence != "likely", match.line, match.message.id))


def _find(message: KnownMessage, text: _Text, shortest: dict[str, int]) -> Match | None:
    if any(_compiled(pattern).search(text.glued) for pattern in message.unless):
        return None
    for confidence, places in (
        ("likely", _whole(message, text)),
        ("possible", _weak(message, text)),
        ("possible", _cut_off(message, text, shortest)),
    ):
        first = min(places, default=None)
        if first is not None:
            return Match(message, confidence, *text.excerpt(*first))
    return None


def _whole(message: KnownMessage, text: _Text) -> Iterator[tuple[int, int]]:
    for phrase in map(glue, message.phrases):
        at = text.folded.find(phrase)
        if at >= 0:
            yield at, at + len(phrase)
    yield from _matches(message.patterns, text)
    yield from (text.codes[code] for code in message.codes if code in text.codes)


def _weak(message: KnownMessage, text: _Text) -> Iterator[tuple[int, int]]:
    yield from _matches(message.weak, text)
    yield from (text.codes[code] for code in message.weak_codes if code in text.codes)


def _matches(patterns: Iterable[str], text: _Text) -> Iterator[tuple[int, int]]:
    for pattern in patterns:
        match = _compiled(pattern).search(text.glued)
        if match and match.end() > match.start():
            yield match.span()


def _cut_off(message: KnownMessage, text: _Text, shortest: dict[str, int]) -> Iterator[tuple[int, int]]:
    """Phrases that lack their end at the end of a line, or their beginning where the text begins."""
    for phrase in map(glue, message.phrases):
        least = shortest[phrase]
        half = (len(phrase) + 1) // 2  # enough of it where nothing says that the line was cut
        if least < len(phrase):
            head, at = phrase[:least], text.folded.find(phrase[:least])
            while at >= 0:
                line = bisect_right(text.starts, at) - 1
                # a phrase may run over several lines before it is cut
                for end, cut in zip(text.ends[line : line + 4], text.cut[line : line + 4], strict=False):
                    enough = least if cut else max(least, half)
                    if enough <= end - at < len(phrase) and phrase.startswith(text.folded[at:end]):
                        yield at, end
                at = text.folded.find(head, at + 1)
        tail = max(16, (3 * len(phrase)) // 5)
        if tail < len(phrase):
            end = text.folded.find(phrase[-tail:], 0, 2 * len(phrase))
            if end >= 0 and phrase.endswith(text.folded[: end + tail]):
                yield 0, end + tail


def read(text_or_file: str) -> str:
    """The text, or the content of the file it names; the middle of a very large file is left out."""
    if "\n" in text_or_file or len(text_or_file) > 4096:
        return text_or_file
    path = Path(text_or_file)
    try:
        if not path.is_file():
            return text_or_file
        with path.open("rb") as file:
            data = file.read(_HALF)
            size = file.seek(0, 2)
            if size > len(data):
                file.seek(max(len(data), size - _HALF))
                data += b"\n" + file.read(_HALF)
    except (OSError, ValueError):
        return text_or_file
    return _decoded(data)


def read_stream(stream: TextIO | None) -> str:
    """What a stream holds; of a very long one the beginning and the end. None, or a closed one, holds nothing."""
    if stream is None:
        return ""
    source = getattr(stream, "buffer", stream)
    try:
        first = source.read(_HALF)
        last = first[:0]
        while piece := source.read(1 << 20):
            last = (last + piece)[-_HALF:]
    except (OSError, ValueError):  # closed, or a folder
        return ""
    return first + last if isinstance(first, str) else _decoded(first + last)


def _decoded(data: bytes) -> str:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):  # PowerShell's redirection
        return data.decode("utf-16", "replace")
    return data.decode("utf-8", "replace")
