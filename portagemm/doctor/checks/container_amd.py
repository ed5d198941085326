"""Containers: what reached this one of the node's AMD GPUs, and whether it may be opened."""

from __future__ import annotations

import errno

from portagemm.doctor.check import Context, Remedy, Result, check, fail, passed, skip
from portagemm.doctor.checks.container import way_of
from portagemm.doctor.facts import container, wsl
from portagemm.doctor.facts_amd import amd_gpus, render_nodes

#: The group id that ids without a mapping show as in a user namespace.
OVERFLOW_GID = 65534

_GIVE = {
    "docker": Remedy(
        "Docker: start the container with the devices.",
        "docker run --device /dev/kfd --device /dev/dri --group-add video --group-add render ...",
        host=True,
    ),
    "podman": Remedy(
        "Podman: start it with the devices, and keep the caller's groups.",
        "podman run --device /dev/kfd --device /dev/dri --group-add keep-groups ...",
        host=True,
    ),
    "kubernetes": Remedy(
        "Kubernetes: request them in the pod's resources.", "limits: {amd.com/gpu: 1}", host=True
    ),
}


@check(
    "container.kfd",
    "The container was given AMD's device nodes",
    reads=("/dev/kfd", "/dev/dri/renderD*", "/sys/bus/pci/devices"),
    severity="blocks-use",
    needs=("container.kind",),
)
def kfd(ctx: Context) -> Result:
    """ROCm needs /dev/kfd and the render nodes. In a container sysfs shows the node's GPUs whether or not the
    nodes were passed on."""
    host = ctx.host
    if wsl(host):
        return skip("no /dev/kfd on WSL: see wsl.rocdxg")
    bound = [device for device in amd_gpus(host) if device.driver == "amdgpu"]
    if not bound:
        return skip("no AMD GPU with its driver on this node")
    render = host.glob("/dev/dri/renderD*")
    missing = [
        name
        for name, there in (("/dev/kfd", host.exists("/dev/kfd")), ("/dev/dri/renderD*", render))
        if not there
    ]
    evidence = [(name, "does not exist") for name in missing]
    if missing:
        message = f"the node has {len(bound)} AMD GPU(s), but the container has no {' and no '.join(missing)}"
        return fail(message, evidence=evidence, remedies=way_of(host, _GIVE), data={"missing": missing})
    if host.open_errno("/dev/kfd", write=True) == errno.EPERM:
        evidence = [("/dev/kfd", "EPERM")]
        return fail(
            "the device cgroup denies /dev/kfd",
            evidence=evidence,
            remedies=way_of(host, _GIVE),
            data={"missing": []},
        )
    return passed(f"/dev/kfd and {len(render)} render node(s)", data={"missing": []})


@check(
    "container.render-gid",
    "The process is in the group that owns AMD's device nodes",
    reads=("stat of /dev/kfd and /dev/dri/renderD*", "groups of the process", "/etc/group"),
    severity="blocks-use",
    needs=("container.kfd",),
)
def render_gid(ctx: Context) -> Result:
    """The nodes keep the group *number* of the host, where render may be 104, 109, 110 or another; a group of the
    same name in the image does not help. In a rootless container groups without a mapping show as 65534, and
    only keep-groups passes them on."""
    host = ctx.host
    blocked = []
    for path in ("/dev/kfd", *render_nodes(host)):
        found = host.stat(path)
        if found is not None and not found.allows(host.user, write=True):
            blocked.append((path, found))
    if not blocked:
        return passed("all nodes can be opened")
    gids = sorted({found.gid for _, found in blocked})
    evidence = [(path, f"group {found.gid}, mode {found.mode:04o}") for path, found in blocked]
    evidence.append(("groups of the process", " ".join(map(str, host.user.groups))))
    data = {"gids": gids, "groups": list(host.user.groups)}
    if OVERFLOW_GID in gids:
        remedies = (Remedy("Keep the caller's groups.", "podman run --group-add keep-groups ...", host=True),)
        message = "the nodes' group has no number in this rootless container"
    elif container(host) == "kubernetes":
        listed = ", ".join(map(str, gids))
        remedies = (
            Remedy(
                "Add the node's group to the pod.",
                f"securityContext: {{supplementalGroups: [{listed}]}}",
                host=True,
            ),
        )
        message = f"{blocked[0][0]} belongs to group {gids[0]}, which this process is not in"
    else:
        adds = " ".join(f"--group-add {gid}" for gid in gids)
        remedies = (Remedy("Add the host's group by its number.", f"docker run {adds} ...", host=True),)
        message = f"{blocked[0][0]} belongs to group {gids[0]}, which this process is not in"
    return fail(message, evidence=evidence, remedies=remedies, data=data)
