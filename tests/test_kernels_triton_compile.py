"""Triton forms compiled ahead of time for GPUs that are not here: registers, spills, shared memory, tensor-core use.

Read from the machine code: STL and LDL are stores to and loads from the stack, that is spilled registers.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

SHARED_LIMIT = {80: 163 * 1024, 90: 227 * 1024}
POINTERS = {
    "hidden": "*bf16",
    "weight": "*bf16",
    "logits": "*bf16",
    "bias": "*fp32",
    "part_m": "*fp32",
    "part_r": "*fp64",
    "part_t": "*fp64",
    "group_max": "*fp32",
    "offset": "*fp64",
    "entropy": "*fp64",
    "logsumexp": "*fp64",
    "ids": "*i64",
    "query": "*bf16",
    "key": "*bf16",
    "index": "*i64",
    "mask": "*u8",
    "scores": "*fp32",
    "sinks": "*bf16",
    "x": "*bf16",
    "m2": "*fp64",
    "out": "*fp32",
    "scale": "fp32",
    "softcap": "fp32",
}
ALIGNED = {"d", "columns", "stride_h", "stride_w", "stride", "width", "q_row", "k_row"}
PLAIN = {"HAS_BIAS": False, "HAS_SCALE": False, "HAS_SOFTCAP": False, "ROUND": 0}
FULL = {"HAS_BIAS": True, "HAS_SCALE": True, "HAS_SOFTCAP": True, "ROUND": 1}
HALVES = {"hidden": "*bf16", "weight": "*bf16"}
SINGLES = {"hidden": "*fp32", "weight": "*fp32"}


def compiled(
    fn: Any, arch: int, constants: dict[str, Any], warps: int, stages: int, types: dict[str, str]
) -> dict[str, int]:
    """Compile one kernel and read its machine code."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kinds = {**POINTERS, **types}
    signature = {name: "constexpr" if name in constants else kinds.get(name, "i32") for name in fn.arg_names}
    aligned = [["tt.divisibility", 16]]
    attrs = {
        (place,): aligned
        for place, name in enumerate(fn.arg_names)
        if name in ALIGNED or signature[name].startswith("*")
    }
    source = ASTSource(fn, signature, constants, attrs)
    kernel = triton.compile(
        source, target=GPUTarget("cuda", arch, 32), options={"num_warps": warps, "num_stages": stages}
    )
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    binary = Path(os.environ["KERNEL_FOLDER"]) / "kernel.cubin"
    binary.write_bytes(kernel.asm["cubin"])
    code = subprocess.run([tool, "-sass", binary], capture_output=True, text=True, check=True).stdout
    usage = subprocess.run([tool, "-res-usage", binary], capture_output=True, text=True, check=True).stdout
    return {
        "registers": int(re.search(r"REG:(\d+)", usage).group(1)),  # type: ignore[union-attr]
        "stack": int(re.search(r"STACK:(\d+)", usage).group(1)),  # type: ignore[union-attr]
        "spills": len(re.findall(r"\b(?:STL|LDL)\b", code)),
        "shared": kernel.metadata.shared,
        "wgmma": kernel.asm["ptx"].count("wgmma.mma_async"),
        "mma": kernel.asm["ptx"].count("mma.sync"),
    }


def tiles(
    arch: int, key: int, config: tuple[int, int, int, int], flags: dict[str, Any], group: int, types: dict[str, str]
) -> dict[str, int]:
    from precollapse.kernels import triton_vocab

    n, k, warps, stages = config
    constants = {
        **flags,
        "GROUP": group,
        "EVEN_K": True,
        "UPCAST": False,
        "M": triton_vocab.TABLE[key][0],
        "N": n,
        "K": k,
    }
    return compiled(triton_vocab.tiles_kernel, arch, constants, warps, stages, types)


def check(case: str) -> None:
    """What one case must hold; runs in a process that was started without the interpreter."""
    from precollapse.kernels import triton_attention, triton_gather, triton_moments, triton_row_state, triton_vocab

    name, arch = case.split("-")[0], int(case.split("-")[1])
    if name == "many":
        config = triton_vocab.LARGE_TILE if arch == 90 else triton_vocab.TABLE[4096][1][0]
        found = tiles(arch, 4096, config, PLAIN, 0, HALVES)
        assert found["wgmma"] > 0 if arch == 90 else found["mma"] > 0, found
    elif name == "few":
        found = tiles(arch, 16, triton_vocab.TABLE[16][1][0], PLAIN, triton_vocab.GROUP, HALVES)
        assert found["mma"] > 0, found
    elif name == "softcap":
        found = tiles(arch, 4096, triton_vocab.TABLE[4096][1][0], FULL, 0, HALVES)
    elif name == "float32":
        found = tiles(arch, 16, triton_vocab.FLOAT32[16], PLAIN, 0, SINGLES)
    else:
        constants: dict[str, Any]
        kernel, constants, warps = {
            "logits": (triton_vocab.logits_kernel, {**PLAIN, "GROUP": 0, "N": 4096}, 8),
            "picked": (triton_vocab.picked_kernel, {**FULL, "P": 16, "K": 256}, 4),
            "settle": (triton_row_state.settle_kernel, {"PARTS": 512}, 1),
            "scores": (
                triton_attention.scores_kernel,
                {
                    "HAS_INDEX": True,
                    "HAS_SOFTCAP": True,
                    "HAS_WINDOW": True,
                    "MASK": triton_attention.BOOL,
                    "G": 16,
                    "GROUPED": 4,
                    "N": 64,
                    "D": 64,
                    "UPCAST": False,
                },
                4,
            ),
            "softmax": (triton_attention.softmax_kernel, {"HAS_SINKS": True, "N": 1024}, 4),
            "gather": (triton_gather.gather_kernel, {"N": 1024}, 4),
            "product": (triton_moments.product_kernel, {"T": 64, "K": 32}, 4),
        }[name]
        found = compiled(kernel, arch, constants, warps, 3, {"x": "*fp32"} if name == "product" else {})
        if name == "product":
            assert found["wgmma"] + found["mma"] > 0, found
    assert found["spills"] == 0 and found["stack"] == 0, found
    assert found["registers"] <= 255, found
    assert found["shared"] <= SHARED_LIMIT[arch], found


CASES = ["many-90", "few-90", "many-80", "few-80", "logits-90", "settle-90", "scores-80", "product-90"]
if os.environ.get("PRECOLLAPSE_ALL_KERNELS"):  # compiled from nothing these take minutes on a small machine
    CASES += ["softcap-90", "float32-90", "picked-90", "softmax-90", "gather-90", "scores-90", "product-80"]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What `check` said of every case ("" when all held), from one process without the interpreter."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["KERNEL_FOLDER"] = str(tmp_path_factory.mktemp("kernels"))
    command = [sys.executable, __file__, *CASES]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stderr[-3000:]
    return dict(json.loads(lines[-1]))


@pytest.mark.parametrize("case", CASES)
def test_ahead_of_time(case: str, outcomes: dict[str, str]) -> None:
    assert outcomes[case] == ""


if __name__ == "__main__":
    said = {}
    for asked in sys.argv[1:]:
        try:
            check(asked)
            said[asked] = ""
        except Exception as error:
            said[asked] = f"{type(error).__name__}: {error}"
    print(json.dumps(said))
