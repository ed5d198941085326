"""``portagemm demo``: a real model on this machine, checked and timed against torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    import torch

    from portagemm.demo.run import Timing


@click.command("demo")
@click.argument("sentences", nargs=-1)
@click.option("--device", default=None, help="Torch device. Default: cuda:0 where there is one, else cpu.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float16", "bfloat16"]),
    default=None,
    help="Default: float16 on a GPU, float32 on the CPU.",
)
@click.option(
    "--repeats", type=click.IntRange(1), default=20, show_default=True, help="Timed passes of each."
)
@click.option("--qkv", is_flag=True, help="Run one QKV projection instead of the model.")
@click.option("--explain", "explain_all", is_flag=True, help="Print every decision, not just the plan.")
def command(
    sentences: tuple[str, ...],
    device: str | None,
    dtype: str | None,
    repeats: int,
    qkv: bool,
    explain_all: bool,
) -> None:
    """Embed sentences with MiniLM-L6, every linear layer through portagemm.linear.

    Prints device, profile, plans, the largest difference to torch, cosines and the time against torch. Give
    two or more SENTENCES to compare your own; without any, paraphrases and unrelated ones are compared.
    Exit code 1 if the results differ from torch's by more than rounding explains.
    """
    import torch

    from portagemm.demo import minilm

    if len(sentences) == 1:
        raise click.UsageError("SENTENCES: given 1; allowed: none, or two and more to compare")
    if device is None:
        device = "cuda:0" if torch.cuda.is_available() else "cpu"
    if dtype is None:
        dtype = "float32" if device == "cpu" else "float16"
    _describe_device(device)

    folder = minilm.find_model()
    missing = minilm.missing_readers()
    if qkv or folder is None or missing:
        if not qkv:
            what = f"package {minilm.PACKAGE}" if folder is None else f"packages {', '.join(missing)}"
            _line("model", f"not here ({what} missing); to get it: {minilm.HOW_TO_GET}")
        _project(device, dtype, repeats, explain_all)
    else:
        _embed(sentences, device, dtype, repeats, explain_all)


def _line(name: str, text: str) -> None:
    click.echo(f"{name:<11} {text}")


def _describe_device(torch_device: str) -> None:
    """Print device and profile. Raises a usage error for a device without a backend."""
    import portagemm
    from portagemm.hal.profile import for_device

    found = {device.torch_device: device for device in portagemm.devices()}
    device = found.get(torch_device) or found.get(f"{torch_device}:0")
    if device is None:
        raise click.UsageError(f"--device: given {torch_device}; allowed: {', '.join(found)}")
    _line("device", f"{device.torch_device}: {device.name} ({device.arch}, {device.compute_units} units)")
    selection = for_device(device)
    _line("profile", f"{selection.profile.name}: {selection.reason}")


def _plan(x: torch.Tensor, w: torch.Tensor, explain_all: bool, **options: object) -> str:
    """What is decided for one layer."""
    import portagemm

    explanation = portagemm.explain("linear", x, w, **options)
    if explain_all:
        return str(explanation)
    return explanation.plan.explain() if explanation.plan else str(explanation)


def _times(timing: Timing) -> str:
    ratio = timing.torch_ms / timing.own_ms
    return (
        f"{timing.own_ms:.3f} ms, torch {timing.torch_ms:.3f} ms: {ratio:.2f}x torch's speed"
        f" (first call {timing.first_ms / 1e3:.2f} s, compilation included if not cached)"
    )


def _check(name: str, difference: float, allowed: float) -> None:
    """Fail, as a wrong number is the one unforgivable fault."""
    if not difference <= allowed:  # also catches NaN
        raise click.ClickException(f"{name} differ from torch's by {difference:.2e}; allowed: {allowed:.2e}")


def _embed(sentences: tuple[str, ...], device: str, dtype_name: str, repeats: int, explain_all: bool) -> None:
    import torch

    from portagemm.demo import minilm, run
    from portagemm.demo.sentences import PARAPHRASES

    folder = minilm.find_model()
    assert folder is not None
    texts = list(sentences) or [text for pair in PARAPHRASES for text in pair]
    done = run.embed(folder, texts, device, getattr(torch, dtype_name), repeats)

    _line(
        "model",
        f"MiniLM-L6, {done.layers} linear layers, {dtype_name}; {len(texts)} sentences, {done.tokens} tokens",
    )
    for number, (name, x, w, bias, activation) in enumerate(done.linears):
        rows, inner = x.numel() // x.shape[-1], x.shape[-1]
        shape = f"[{rows},{inner}]x[{inner},{w.shape[0]}]" + (f" + {activation}" if activation else "")
        _line("plan" if number == 0 else "", f"{name} {shape}:")
        for line in _plan(x, w, explain_all, bias=bias, activation=activation).splitlines():
            _line("", f"  {line}")
    _line("difference", f"{done.difference:.2e} at most to torch in {dtype_name}")
    if dtype_name != "float32" or device != "cpu":
        _line(
            "", f"to torch in float32 on the CPU: ours {done.own_error:.2e}, torch's {done.torch_error:.2e}"
        )
    cosines = done.vectors @ done.vectors.T
    if sentences:
        _line("cosine", "of each two sentences")
        for i, text in enumerate(texts):
            click.echo("".join(f"{float(c):7.3f}" for c in cosines[i]) + f"  {text}")
    else:
        _pairs(cosines)
    _line("time", _times(done.timing))
    _check("embeddings", done.difference, run.TOLERANCE[dtype_name])


def _pairs(cosines: torch.Tensor) -> None:
    """Cosines of the paraphrases and of all other pairs. Fails if the model does not tell them apart."""
    count = len(cosines)
    same = [float(cosines[i, i + 1]) for i in range(0, count, 2)]
    other = [float(cosines[i, j]) for i in range(count) for j in range(i) if i // 2 != j // 2]
    _line("cosine", f"paraphrases: mean {sum(same) / len(same):.3f}, least {min(same):.3f}")
    _line("", f"unrelated:   mean {sum(other) / len(other):.3f}, greatest {max(other):.3f}")
    if sum(same) / len(same) < 2 * sum(other) / len(other):
        raise click.ClickException("the embeddings do not tell paraphrases from unrelated sentences")


def _project(device: str, dtype_name: str, repeats: int, explain_all: bool) -> None:
    import torch

    from portagemm.demo import run

    done = run.project(device, getattr(torch, dtype_name), repeats)
    _line("problem", f"QKV projection [1,4096]x[4096,12288], {dtype_name}, random data")
    for number, line in enumerate(_plan(done.x, done.w, explain_all).splitlines()):
        _line("plan" if number == 0 else "", line)
    _line("difference", f"{done.difference:.2e} at most to torch (rounding explains {done.allowed:.2e})")
    _line("time", _times(done.timing))
    _check("results", done.difference, done.allowed)
