"""The packaging holds together: its failures are quiet (a package missing from the list is just absent)."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = pytest.mark.quick

ROOT = Path(__file__).resolve().parent.parent
LINKS = ("hal", "backends", "arch_profiles")


@pytest.fixture(scope="module")
def settings() -> dict[str, Any]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)["tool"]["setuptools"]


def folder_of(package: str, mapping: dict[str, str]) -> Path:
    """The folder a package's files are in, by setuptools' longest-prefix rule."""
    parts = package.split(".")
    for cut in range(len(parts), 0, -1):
        prefix = ".".join(parts[:cut])
        if prefix in mapping:
            return ROOT.joinpath(mapping[prefix], *parts[cut:])
    return ROOT.joinpath(*parts)


def packages_on_disk() -> dict[str, Path]:
    """Every folder with an ``__init__.py``, by the name it is imported as; links are not followed."""
    found: dict[str, Path] = {}
    for top, prefix in (("portagemm", "portagemm"), *((name, f"portagemm.{name}") for name in LINKS)):
        for init in (ROOT / top).rglob("__init__.py"):
            inner = init.parent.relative_to(ROOT / top)
            if any(
                (ROOT / top).joinpath(*inner.parts[:n]).is_symlink() for n in range(1, len(inner.parts) + 1)
            ):
                continue
            found[".".join((prefix, *inner.parts))] = init.parent
    return found


def test_package_list_is_the_folders(settings: dict[str, Any]) -> None:
    assert sorted(settings["packages"]) == sorted(packages_on_disk())


def test_package_list_is_sorted_and_unique(settings: dict[str, Any]) -> None:
    assert settings["packages"] == sorted(set(settings["packages"]))


def test_mapping_points_at_the_folders(settings: dict[str, Any]) -> None:
    for package, folder in packages_on_disk().items():
        assert folder_of(package, settings["package-dir"]) == folder


@pytest.mark.parametrize("name", LINKS)
def test_links_in_place(name: str) -> None:
    link = ROOT / "portagemm" / name
    if not link.is_symlink():
        pytest.skip(f"{link} is no link: cloned with core.symlinks=false; tools see less, the package works")
    assert str(link.readlink()) == f"../{name}"
    assert link.is_dir()


def test_all_data_is_shipped(settings: dict[str, Any]) -> None:
    """Each file below a package that is not Python is named by that package's data patterns."""
    shipped: set[Path] = set()
    for package, patterns in settings["package-data"].items():
        folder = folder_of(package, settings["package-dir"])
        for pattern in patterns:
            shipped.update(path for path in folder.glob(pattern) if path.is_file())
    for folder in packages_on_disk().values():
        for path in sorted(folder.rglob("*")):
            inner = path.relative_to(folder)
            if path.is_dir() or "__pycache__" in inner.parts or inner.parts[0] in LINKS:
                continue
            if path.suffix in (".py", ".pyi", ".pyc", ".so") or path.name.startswith("."):
                continue
            assert path in shipped, f"{path.relative_to(ROOT)} would be missing from the wheel"


def test_no_file_is_shipped_twice(settings: dict[str, Any]) -> None:
    """A pattern of `portagemm` that reaches through the links would double files in the sdist."""
    for pattern in settings["package-data"]["portagemm"]:
        for path in (ROOT / "portagemm").glob(pattern):
            assert path.relative_to(ROOT / "portagemm").parts[0] not in LINKS


def test_headers_are_there() -> None:
    """The folders a kernel is compiled from exist under the names the include path uses."""
    assert list((ROOT / "hal/include/portagemm").glob("*.hpp"))
    assert list((ROOT / "portagemm/kernels").rglob("*.hpp"))
    for backend in ("cpu", "cuda", "rocm"):
        assert (ROOT / "backends" / backend / "include/portagemm/vendor.hpp").is_file()


def test_backends_have_the_same_files() -> None:
    """The same idea has the same file name in each backend, so that their diff says how they differ."""
    for backend in ("cpu", "cuda", "rocm"):
        for name in ("__init__.py", "backend.py", "compiler.py", "driver.py", "README.md"):
            assert (ROOT / "backends" / backend / name).is_file(), f"backends/{backend}/{name}"


def test_extras_bring_what_their_names_promise() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras: dict[str, list[str]] = tomllib.load(file)["project"]["optional-dependencies"]
    for extra, bounds, wheels in (
        ("cuda12", ">=12.8,<13", ("nvidia-cuda-nvrtc-cu12", "nvidia-nvjitlink-cu12")),
        ("cuda13", ">=13.0,<14", ("nvidia-cuda-nvrtc", "nvidia-nvjitlink")),
    ):
        assert f"cuda-python{bounds}" in extras[extra]
        for wheel in wheels:
            assert any(re.match(rf"{wheel}[<>=]", line) for line in extras[extra])
    assert "hip-python" in extras["rocm"]
    assert any(re.match(r"tomli\b.*python_version < '3.11'", line) for line in extras["test"])
