"""The import rule and the vendor rule, where import-linter cannot see: lazy imports, headers, start-up.

arch_profiles (data)  <-  hal  <-  backends.{cuda,rocm,cpu}      siblings never import each other
                          hal  <-  portagemm                     reaches a backend only through hal.registry
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = pytest.mark.quick

ROOT = Path(__file__).resolve().parent.parent
BACKENDS = ("cpu", "cuda", "rocm")
LAYERS = ("hal", "backends", "arch_profiles")

#: Imported where they are used, never when a module of ours is: a machine may lack them, or they are slow.
NEVER_AT_IMPORT = {"cuda", "hip", "triton", "numpy", "jsonschema", "rich"}

#: Names of vendors and archs: in shared code not even in a comment.
VENDOR_NAMES = re.compile(r"cuda|nvidia|nvrtc|\bhip|rocm|\bamd\b|gfx\d+|\bsm_?\d{2}", re.IGNORECASE)
#: Words of one vendor's language. Shared code says wave and block; the rest is in <portagemm/vendor.hpp>.
VENDOR_WORDS = re.compile(r"__CUDA|__gfx|__HIP|__nv_|__syncthreads|\bthreadIdx\b|\bblockIdx\b|\bwarp|\basm\b")
SHARED_HEADERS = sorted((ROOT / "hal/include").rglob("*.hpp")) + sorted(
    (ROOT / "portagemm/kernels").rglob("*.hpp")
)
ALL_HEADERS = SHARED_HEADERS + sorted((ROOT / "backends").rglob("*.hpp"))


def python_files(top: str) -> list[Path]:
    """The Python files below a top-level folder, links not followed."""
    base = ROOT / top
    return [
        p
        for p in sorted(base.rglob("*.py"))
        if top != "portagemm" or p.relative_to(base).parts[0] not in LAYERS
    ]


def imports(path: Path, package: str, *, top_level_only: bool = False) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of each import in the file; relative ones resolved against `package`."""
    tree = ast.parse(path.read_text())
    nodes: list[ast.stmt] = list(tree.body)
    if not top_level_only:
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parent, base] if base else parent)
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def package_of(path: Path) -> str:
    """The dotted package a file is in."""
    parts = path.parent.relative_to(ROOT).parts
    return ".".join(parts if parts[0] == "portagemm" else ("portagemm", *parts))


def label(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("header", SHARED_HEADERS, ids=label)
def test_shared_headers_name_no_vendor(header: Path) -> None:
    for number, line in enumerate(header.read_text().splitlines(), 1):
        found = VENDOR_NAMES.search(line) or VENDOR_WORDS.search(line.partition("//")[0])
        assert not found, f"{label(header)}:{number}: {found and found[0]!r} in shared code: {line.strip()}"


@pytest.mark.parametrize("header", ALL_HEADERS, ids=label)
def test_headers_include_only_ours(header: Path) -> None:
    """No CUDA, HIP or standard header is needed; the cpu backend may use the host's standard library."""
    if header.is_relative_to(ROOT / "backends/cpu"):
        return
    for number, line in enumerate(header.read_text().splitlines(), 1):
        found = re.match(r"\s*#\s*include(?:_next)?\s*(\S+)", line)
        assert not found or found[1].startswith(("<portagemm/", "<kernels/")), (
            f"{label(header)}:{number}: {line.strip()}"
        )


@pytest.mark.parametrize("header", ALL_HEADERS, ids=label)
def test_headers_are_guarded_and_explained(header: Path) -> None:
    text = header.read_text()
    assert "#pragma once" in text
    assert text.startswith("//"), f"{label(header)}: the first line says what the file is for"


@pytest.mark.parametrize("path", python_files("hal"), ids=label)
def test_hal_imports_nothing_above_it(path: Path) -> None:
    for line, name in imports(path, package_of(path)):
        if name.startswith("portagemm"):
            allowed = ("portagemm.hal", "portagemm.arch_profiles")
            assert name.startswith(allowed), f"{label(path)}:{line} imports {name}"


@pytest.mark.parametrize("path", python_files("backends"), ids=label)
def test_backends_import_hal_only(path: Path) -> None:
    own = path.relative_to(ROOT / "backends").parts[0]
    for line, name in imports(path, package_of(path)):
        if not name.startswith("portagemm"):
            continue
        assert name.startswith(("portagemm.hal", f"portagemm.backends.{own}")), (
            f"{label(path)}:{line} imports {name}"
        )


@pytest.mark.parametrize("path", python_files("portagemm"), ids=label)
def test_api_reaches_backends_by_name_only(path: Path) -> None:
    for line, name in imports(path, package_of(path)):
        assert not name.startswith("portagemm.backends"), (
            f"{label(path)}:{line} imports {name}: hal.registry.get"
        )


@pytest.mark.parametrize("path", python_files("hal") + python_files("backends"), ids=label)
def test_no_vendor_library_at_import(path: Path) -> None:
    for line, name in imports(path, package_of(path), top_level_only=True):
        assert name.split(".")[0] not in NEVER_AT_IMPORT | {"torch"}, f"{label(path)}:{line} imports {name}"


def test_shared_python_says_imports_in_full() -> None:
    """`import hal` works in a checkout and makes a second class of everything."""
    for top in ("portagemm", *LAYERS, "tests", "benchmarks", "examples"):
        for path in python_files(top):
            for line, name in imports(path, package_of(path) if top in ("portagemm", *LAYERS) else top):
                assert name.split(".")[0] not in LAYERS, f"{label(path)}:{line} imports {name}"


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("portagemm", NEVER_AT_IMPORT | {"torch", "click", "yaml"}),
        ("portagemm.hal", NEVER_AT_IMPORT | {"torch", "click"}),
        ("portagemm.hal.registry", NEVER_AT_IMPORT | {"torch", "click"}),
        ("portagemm.backends.cuda.backend", NEVER_AT_IMPORT | {"torch", "click"}),
        ("portagemm.backends.rocm.backend", NEVER_AT_IMPORT | {"torch", "click"}),
        ("portagemm.backends.cpu.backend", NEVER_AT_IMPORT | {"torch", "click"}),
        ("portagemm.cli", NEVER_AT_IMPORT | {"torch", "yaml"}),
    ],
)
def test_import_is_light(module: str, absent: set[str]) -> None:
    """What a fresh interpreter has loaded after importing `module`."""
    code = f"import sys, {module}; print(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert not absent & set(done.stdout.split())


def test_import_linter_knows_every_module() -> None:
    """The contract `API reaches no backend` lists modules by name; a new one must be on it."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts: list[dict[str, Any]] = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    (contract,) = (c for c in contracts if c.get("forbidden_modules") == ["portagemm.backends"])
    modules = {
        f"portagemm.{path.stem}"
        for path in (ROOT / "portagemm").iterdir()
        if path.name not in LAYERS
        and not path.name.startswith("_")
        and (path.suffix == ".py" or (path / "__init__.py").is_file())
    }
    assert set(contract["source_modules"]) == modules
