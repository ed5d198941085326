"""What the doctor prints and returns: JSON by its schema, text, Markdown, exit codes, redaction, bundles."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import portagemm
from portagemm.doctor import main as main_module
from portagemm.doctor.check import all_checks
from portagemm.doctor.machine_file import dump, parse
from portagemm.doctor.redact import Redactor
from portagemm.doctor.render import Style, human, markdown
from portagemm.doctor.replay import unpack

from . import machine_files

SCHEMA = json.loads((Path(portagemm.__file__).parent / "doctor/report_schema.json").read_text("utf-8"))
FAILING = "docker-utility-only"
WARNING = "wsl2-docker"


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    """Runs the command line on a machine: (exit code, standard output, standard error)."""

    def run(name: str, *arguments: str) -> tuple[int, str, str]:
        folder = tmp_path / name
        if not folder.exists():
            unpack(machine_files.machine(name), folder)
        code = main_module.main(["--root", str(folder), *arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.mark.quick
@pytest.mark.parametrize(
    "name", ["cpu-laptop", FAILING, WARNING, "mi300x8", "rx9070-igpu", "slurm-two-of-eight"]
)
def test_json_obeys_the_schema(doctor: Any, name: str) -> None:
    code, out, err = doctor(name, "--json")
    document = json.loads(out)
    jsonschema.validate(document, SCHEMA, jsonschema.Draft202012Validator)
    assert not err and document["summary"]["exit_code"] == code
    found = {f"{c['status']} {c['id']}" for c in document["checks"] if c["status"] in machine_files.FINDINGS}
    assert found == machine_files.expected(name)
    assert sum(document["summary"]["counts"].values()) == len(document["checks"])


@pytest.mark.quick
def test_the_schema_refuses_what_it_should() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    check = {"id": "wsl.x", "status": "MAYBE"}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(check, {**SCHEMA, "$ref": "#/$defs/check", "type": "object", "required": []})


@pytest.mark.quick
@pytest.mark.parametrize(
    ("name", "arguments", "code"),
    [
        ("cpu-laptop", [], 0),
        ("cpu-laptop", ["--require-gpu"], 1),
        ("cpu-laptop", ["--require-gpu=amd"], 1),
        ("cpu-laptop", ["--require-gpu", "--only", "wsl"], 1),
        ("h100x8-no-fabric-manager", ["--require-gpu", "--only", "wsl"], 1),
        ("h100x8-no-fabric-manager", ["--require-gpu", "--only", "wsl", "--passive"], 0),
        ("h100", ["--require-gpu", "--strict"], 0),
        (FAILING, [], 1),
        (FAILING, ["--skip", "container.nvidia-caps"], 1),  # what it was the root of fails now
        (FAILING, ["--only", "platform"], 0),
        (WARNING, [], 0),
        (WARNING, ["--strict"], 1),
        (WARNING, ["--strict", "--skip", "limits.*"], 0),
    ],
)
def test_exit_codes(doctor: Any, name: str, arguments: list[str], code: int) -> None:
    assert doctor(name, *arguments)[0] == code


@pytest.mark.quick
@pytest.mark.parametrize(
    "arguments",
    [
        ["--only", "nothing.*"],
        ["--skip", "nothing"],
        ["--explain", "wsl.kernl"],
        ["--root", "/nonexistent"],
        ["--from-bundle", "/nonexistent"],
        ["--root", "/", "--from-bundle", "x"],
    ],
)
def test_wrong_usage_is_2_and_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main_module.main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == "" and len(said.err.splitlines()) == 1
    assert "Traceback" not in said.err


@pytest.mark.quick
@pytest.mark.parametrize("arguments", [["--nope"], ["--json", "--markdown"], ["--require-gpu=intel"]])
def test_unknown_options_are_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main_module.main(arguments)
    assert stopped.value.code == 2


@pytest.mark.quick
def test_a_near_miss_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    main_module.main(["--explain", "wsl.kernl"])
    assert "wsl.kernel" in capsys.readouterr().err


@pytest.mark.quick
def test_the_report_for_people(doctor: Any) -> None:
    out = doctor(FAILING)[1]
    assert "How to fix" in out
    assert "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ..." in out
    assert "[outside the container]" in out
    last = out.strip().splitlines()[-1]
    assert last.startswith("Not ready: NVIDIA GPUs") and "container.nvidia-caps" in last
    assert "\033[" not in out  # no terminal, no colours
    assert "nvidia.cuinit" in out and "did not pass" in out  # what waits for the failure is shown
    assert "wsl.version" not in out  # what does not apply is not
    assert "wsl.version" in doctor(FAILING, "-v")[1]
    quiet = doctor(FAILING, "-q")[1]
    assert "platform.os" not in quiet and "container.nvidia-caps" in quiet


@pytest.mark.quick
@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("cpu-laptop", "No GPU here: ready for the CPU."),
        ("h100", "Ready for NVIDIA GPUs."),
        ("hybrid-nvidia-amd", "Ready for NVIDIA and AMD GPUs."),
        (WARNING, "Ready for NVIDIA GPUs, with 1 warning."),
        ("docker-shm-two-gpus", "Ready for NVIDIA GPUs, with 1 problem."),
    ],
)
def test_verdicts(doctor: Any, name: str, verdict: str) -> None:
    assert doctor(name)[1].strip().splitlines()[-1] == verdict


@pytest.mark.quick
def test_colours_and_marks(doctor: Any) -> None:
    document = json.loads(doctor(WARNING, "--json")[1])
    assert "\033[33m!\033[0m" in human(document, Style(colour=True))
    plain = human(document, Style(unicode=False))
    assert plain.isascii()


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.quick
@pytest.mark.parametrize(
    ("env", "arguments", "coloured"),
    [
        ({}, [], True),
        ({"NO_COLOR": "1"}, [], False),
        ({"TERM": "dumb"}, [], False),
        ({}, ["--no-color"], False),
    ],
)
def test_no_color(
    env: dict[str, str], arguments: list[str], coloured: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    terminal = _Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    main_module.main(["--root", str(tmp_path), "--only", "platform", *arguments])
    assert ("\033[" in terminal.getvalue()) == coloured


@pytest.mark.quick
def test_markdown(doctor: Any) -> None:
    code, out, _ = doctor(FAILING, "--markdown")
    assert code == 1
    assert out.startswith("**portagemm doctor")
    assert "| FAIL | `container.nvidia-caps` |" in out
    assert "<details>" in out
    rows = [line for line in out.splitlines() if line.startswith("| ")]
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 4 for row in rows)
    hostile = {
        "id": "wsl.x",
        "group": "wsl",
        "status": "FAIL",
        "message": "a|b <script> *x*\nnext",
        "details": [],
        "evidence": [{"path": "p`q", "value": "v"}],
    }
    document = {"tool_version": "1", "machine": {}, "summary": {"verdict": "v"}, "checks": [hostile]}
    text = markdown(document)
    assert "a\\|b \\<script\\> \\*x\\* next" in text and "`p'q`" in text


@pytest.mark.quick
def test_lists_and_explanations(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_module.main(["--list-checks"]) == 0
    listed = capsys.readouterr().out
    for item in all_checks().values():
        assert f"  {item.id} " in listed
        assert main_module.main(["--explain", item.id]) == 0
        explained = capsys.readouterr().out
        assert item.title in explained and f"docs/doctor/{item.group}.md" in explained
    assert main_module.main(["--list-checks", "--json"]) == 0
    assert [item["id"] for item in json.loads(capsys.readouterr().out)] == list(all_checks())
    assert main_module.main(["--json-schema"]) == 0
    assert json.loads(capsys.readouterr().out) == SCHEMA


@pytest.mark.quick
def test_output_goes_to_a_file(doctor: Any, tmp_path: Path) -> None:
    code, out, _ = doctor("cpu-laptop", "--json", "-o", str(tmp_path / "report.json"))
    assert (code, out) == (0, "")
    jsonschema.validate(json.loads((tmp_path / "report.json").read_text("utf-8")), SCHEMA)


# -- redaction and bundles -------------------------------------------------------------------------------

SECRETS = {
    "HF_TOKEN": "hf_AbCdEfGhIjKlMnOpQrStUv",
    "MY_API_KEY": "0123456789abcdef",
    "DB_PASSWORD": "correct horse battery",
    "MASTER_ADDR": "10.17.4.2",
    "PIP_INDEX_URL": "https://alice:s3cr3t@pypi.example.com/simple",
}
#: Of the fixture's user, host, GPU and board; and of the variables above.
PRIVATE = [
    "alice",
    "tuxedo17",
    "6a5b4c3d-1111",
    "3f1c0f52-9a0e",
    "1654922001234",
    "s3cr3t",
    *list(SECRETS.values())[:4],
]


def _with_secrets(tmp_path: Path, **more: str) -> tuple[Path, Any]:
    machine = machine_files.machine("h100")
    machine.env.update({**SECRETS, **more})
    unpack(machine, tmp_path / "m")
    return tmp_path / "m", machine


@pytest.mark.quick
@pytest.mark.parametrize("form", ["--json", "--markdown", "--verbose"])
def test_nothing_private_is_printed(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # what a check might show: secrets in the output of commands, in paths and in error texts
    folder, _ = _with_secrets(
        tmp_path,
        LD_LIBRARY_PATH=f"/home/alice/{SECRETS['MY_API_KEY']}/stubs",
        CUDA_VISIBLE_DEVICES="GPU-6a5b4c3d-1111-4000-8000-000000000000",
    )
    main_module.main(["--root", str(folder), form])
    out = capsys.readouterr().out
    assert "libcuda" in out
    for text in PRIVATE:
        assert text.lower() not in out.lower(), text
    main_module.main(["--root", str(folder), form, "--no-redact"])
    shown = capsys.readouterr().out
    assert "alice" in shown


@pytest.mark.quick
def test_nothing_private_is_in_a_bundle(tmp_path: Path) -> None:
    folder, machine = _with_secrets(tmp_path)
    machine.files["/proc/1/environ"] = b"SECRET=x9x9x9x9\0container=docker\0"
    machine.files["/etc/group"] = b"render:x:110:alice,bob,carol\n"
    machine.files["/proc/self/mountinfo"] = b"1 0 0:9 / /home rw - nfs4 filer01:/export rw\n"
    machine.files["/sys/class/x/unique_id"] = b"deadbeefcafef00d\n"
    text = dump(Redactor(main_module.open_tree(folder)).machine(machine))
    for private in [*PRIVATE, "x9x9x9x9", "bob", "carol", "filer01", "deadbeefcafef00d"]:
        assert private.lower() not in text.lower(), private
    clean = parse(text)
    assert clean.files["/proc/1/environ"] == b"container=docker\0"
    assert clean.files["/etc/group"] == b"render:x:110:user\n"
    assert clean.env["HOME"] == "/home/user"
    assert clean.machine["user"]["name"] == "user"


@pytest.mark.quick
@pytest.mark.parametrize(
    "name",
    [
        FAILING,
        "h100",
        "mi300x8-stale-session",
        "rx9070-igpu-masked",
        "k8s-mig",
        "cache-of-others",
        "wsl2-radeon-mixed",
    ],
)
def test_a_redacted_machine_says_the_same(name: str, tmp_path: Path) -> None:
    """Names are replaced everywhere alike: files are found, groups match, masks name their GPU."""
    machine = machine_files.machine(name)
    unpack(machine, tmp_path / "one")
    clean = parse(dump(Redactor(main_module.open_tree(tmp_path / "one")).machine(machine)))
    unpack(clean, tmp_path / "two")
    outcomes = main_module.run_checks(main_module.open_tree(tmp_path / "two"), main_module.select())
    assert machine_files.findings(outcomes) == machine_files.expected(name)


@pytest.mark.quick
def test_aliases_tell_apart_and_stay(tmp_path: Path) -> None:
    folder, _ = _with_secrets(tmp_path)
    redactor = Redactor(main_module.open_tree(folder))
    one, two = "GPU-6a5b4c3d-1111-4000-8000-000000000000", "GPU-6a5b4c3d-1111-4000-8000-000000000001"
    assert redactor.text(one) != redactor.text(two)
    assert redactor.text(one) == redactor.text(one.replace("a5b4c3d", "A5B4C3D"))
    assert redactor.text(redactor.text(one)) == redactor.text(one)
    assert re.fullmatch(r"GPU-00000000-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", redactor.text(one))
    assert redactor.text("malice, alices, Alice's") == "malice, alices, user's"
    assert re.fullmatch("/home/user-[0-9a-f]{4}/x", redactor.text("/home/alicex/x"))


@pytest.mark.quick
def test_a_bundle_of_another_machine_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = machine_files.machine(FAILING)
    (tmp_path / "b.txt").write_text(dump(machine), "utf-8")
    assert main_module.main(["--from-bundle", str(tmp_path / "b.txt"), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["summary"]["failed"] == ["container.nvidia-caps"]
    (tmp_path / "b.bin").write_bytes(b"\xff\xfe\x00")
    assert main_module.main(["--from-bundle", str(tmp_path / "b.bin")]) == 2
    assert (
        main_module.main(["--from-bundle", str(tmp_path / "b.txt"), "--save-bundle", str(tmp_path / "c")])
        == 2
    )


@pytest.mark.quick
def test_save_bundle_and_replay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bundle.txt"
    first = main_module.main(["--save-bundle", str(path), "--json", "--passive"])
    live = json.loads(capsys.readouterr().out)
    second = main_module.main(["--from-bundle", str(path), "--json", "--passive"])
    replayed = json.loads(capsys.readouterr().out)
    assert first == second
    assert [(c["id"], c["status"]) for c in live["checks"]] == [
        (c["id"], c["status"]) for c in replayed["checks"]
    ]
