"""CI step: build sdist and wheel, install the wheel outside the checkout, multiply with it on the CPU.

What goes wrong here is quiet otherwise: a header, kernel or profile that is missing from the wheel works in
the checkout. The wheel is built from the sdist, as an installer without wheels would.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINKS = ("hal", "backends", "arch_profiles")

USE = """
import sys, torch, portagemm
assert not portagemm.__file__.startswith(sys.argv[1]), portagemm.__file__
a, b = torch.randint(-4, 5, (37, 65)).float(), torch.randint(-4, 5, (65, 129)).float()
out = portagemm.matmul(a, b, fallback="error")
assert torch.equal(out, a @ b)
print("matmul from", portagemm.__file__)
print(portagemm.explain(portagemm.matmul, a, b))
"""


def expected() -> set[str]:
    """Every file of the checkout that a wheel must hold, by its name inside the wheel."""
    names: set[str] = set()
    for top in ("portagemm", *LINKS):
        prefix = "" if top == "portagemm" else "portagemm/"
        command = ["git", "ls-files", top]
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        for name in listed.stdout.splitlines():
            if not (ROOT / name).is_symlink() and (ROOT / name).is_file():
                names.add(prefix + name)
    return names


def main() -> int:
    """Run the check; raises on any failure."""
    with tempfile.TemporaryDirectory(prefix="portagemm-wheel-") as temporary:
        folder = Path(temporary)
        subprocess.run(
            [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), str(ROOT)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        (wheel,) = (folder / "dist").glob("*.whl")
        (sdist,) = (folder / "dist").glob("*.tar.gz")
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
        assert len(names) == len(set(names)), "a file is in the wheel twice"
        missing = expected() - set(names)
        assert not missing, f"missing from the wheel: {sorted(missing)}"
        extra = {n for n in names if ".dist-info/" not in n} - expected()
        assert not extra, f"in the wheel, not in the checkout: {sorted(extra)}"
        with tarfile.open(sdist) as tar:
            members = [m.name for m in tar.getmembers()]
        doubled = [m for m in members if m.split("/")[1:3] in (["portagemm", x] for x in LINKS)]
        assert not doubled, f"the sdist holds files again behind a link: {doubled}"

        # Torch and the rest come from this environment; portagemm itself only from the wheel. A plain .pth
        # line adds the folder without running the editable install's hook that lies in it.
        venv.create(folder / "venv", with_pip=True)
        python = folder / "venv/bin/python"
        subprocess.run([str(python), "-m", "pip", "install", "-q", "--no-deps", str(wheel)], check=True)
        site = Path(
            subprocess.run(
                [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
                check=True,
                capture_output=True,
                text=True,
            ).stdout.strip()
        )
        paths = [p for p in sys.path if p.endswith("-packages")] or [sysconfig.get_path("purelib")]
        (site / "outer.pth").write_text("".join(f"{path}\n" for path in paths))
        environment = {**os.environ, "PORTAGEMM_CACHE_DIR": str(folder / "cache")}
        environment.pop("PYTHONPATH", None)
        for name in ("PORTAGEMM_PROFILE", "PORTAGEMM_PROFILES", "PORTAGEMM_KERNEL_PATH"):
            environment.pop(name, None)
        subprocess.run([str(python), "-c", USE, str(ROOT)], check=True, cwd=folder, env=environment)
        print(f"wheel check: ok: {wheel.name}, {len(names)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
