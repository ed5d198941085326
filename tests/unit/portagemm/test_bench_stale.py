"""The digest of the kernel sources, and which results are older than they."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from portagemm.bench import digest

pytestmark = pytest.mark.quick

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def stale() -> ModuleType:
    spec = importlib.util.spec_from_file_location("stale", ROOT / "benchmarks" / "stale.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["stale"] = module
    spec.loader.exec_module(module)
    return module


def test_digest_covers_headers_kernels_and_profiles() -> None:
    files = digest.source_files("cuda")
    assert list(files) == sorted(files)
    for prefix in ("hal/include/portagemm/", "portagemm/kernels/", "backends/cuda/", "arch_profiles/h100"):
        assert any(name.startswith(prefix) for name in files), prefix
    assert all(name.endswith((".hpp", ".yaml")) for name in files)
    assert not any("rocm" in name or "mi250x" in name for name in files)
    assert digest.sources_digest("cuda") == digest.sources_digest("cuda") != digest.sources_digest("rocm")


def test_digest_changes_with_content_and_with_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def of(name: str, text: str) -> str:
        path = tmp_path / "file"
        path.write_text(text)
        monkeypatch.setattr(digest, "source_files", lambda backend: {name: path})
        return digest.sources_digest("cuda")

    assert len({of("a.hpp", "x"), of("a.hpp", "y"), of("b.hpp", "x")}) == 3


def test_stale_and_fresh(stale: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "benchmarks" / "results" / "nvidia-h200"
    folder.mkdir(parents=True)
    (folder / "a.json").write_text(json.dumps({"sources_digest": "now", "date": "2026-01-01"}))
    (folder / "b.json").write_text(json.dumps({"sources_digest": "then"}))
    (folder / "c.json").write_text("{broken")
    (folder / "d.json").write_text("[1]")
    deep = tmp_path / "tests" / "device" / "results"
    deep.mkdir(parents=True)
    (deep / "e.json").write_text(json.dumps({"sources_digest": "now"}))
    fresh, old = stale.stale(tmp_path, {"now"})
    assert [r.path for r in fresh] == ["benchmarks/results/nvidia-h200/a.json", "tests/device/results/e.json"]
    assert [Path(r.path).name for r in old] == ["b.json", "c.json", "d.json"]
    assert old[1].problem and old[2].problem


def test_script_ends_with_a_verdict_and_success() -> None:
    done = subprocess.run([sys.executable, "benchmarks/stale.py"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert digest.sources_digest("cuda")[:12] in done.stdout.splitlines()[-1]


def test_digest_needs_no_torch() -> None:
    code = (
        "import sys, portagemm.bench.digest as d; d.sources_digest('cuda'); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
