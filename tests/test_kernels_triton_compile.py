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
import torch

pytest.importorskip("triton")

INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"

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
FLAGS = {
    "plain": {"HAS_BIAS": False, "HAS_SCALE": False, "HAS_SOFTCAP": False, "ROUND": 0},
    "bias": {"HAS_BIAS": True, "HAS_SCALE": True, "HAS_SOFTCAP": False, "ROUND": 0},
    "full": {"HAS_BIAS": True, "HAS_SCALE": True, "HAS_SOFTCAP": True, "ROUND": 1},
}
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


def tiles(arch: int, key: int, config: tuple[int, int, int, int], kind: str) -> dict[str, int]:
    from precollapse.kernels.triton_forms import tile_sizes, vocab, vocab_kernels

    n, k, warps, stages = config
    what, *more = kind.split("+")
    constants = {
        **FLAGS[what],
        "GROUP": vocab.GROUP if "top" in more else 0,
        "EVEN_K": "odd" not in more,
        "UPCAST": False,
        "M": tile_sizes.TABLE[key][0],
        "N": n,
        "K": k,
    }
    types = SINGLES if config in tile_sizes.FLOAT32.values() else HALVES
    return compiled(vocab_kernels.tiles_kernel, arch, constants, warps, stages, types)


def tile_cases(arch: int) -> dict[str, tuple[int, tuple[int, int, int, int], str]]:
    """Every configuration that may be chosen on this GPU, each with all that it may be asked for."""
    from precollapse.kernels.triton_forms import tile_sizes

    cases = {}
    for key in tile_sizes.TABLE:
        for dtype in (torch.bfloat16, torch.float32):
            # odd: d is no multiple of 256, as 576 and 896 are not
            for kind in ("plain+top", "bias", "bias+top", "full+top", "plain+top+odd", "bias+odd", "full+top+odd"):
                what, *more = kind.split("+")
                light = tile_sizes.is_light(FLAGS[what], "top" in more)
                for config in tile_sizes.choices(key, arch // 10, light, dtype, {"top", "odd"} <= set(more)):
                    rows = tile_sizes.TABLE[key][0]
                    cases.setdefault(f"{rows}x{'x'.join(map(str, config))}:{kind}", (key, config, kind))
    return cases


def others() -> dict[str, tuple[Any, dict[str, Any], int]]:
    """The kernels beside the tiles, by name: with all that they may be asked for."""
    from precollapse.kernels.triton_forms import attention, gather, moments, row_state, vocab_kernels

    scores = {
        "HAS_INDEX": True,
        "HAS_SOFTCAP": True,
        "HAS_WINDOW": True,
        "MASK": attention.BOOL,
        "G": 16,
        "GROUPED": 4,
        "N": 64,
        "D": 64,
        "UPCAST": False,
    }
    one_query = {**scores, "HAS_INDEX": False, "MASK": attention.NO_MASK, "queries": 1}
    return {
        "logits": (vocab_kernels.logits_kernel, {**FLAGS["plain"], "GROUP": 16, "N": 4096}, 8),
        "chunk": (vocab_kernels.logits_kernel, {**FLAGS["full"], "GROUP": 16, "N": 4096}, 8),
        "picked": (vocab_kernels.picked_kernel, {**FLAGS["full"], "P": 16, "K": 256}, 4),
        "settle": (row_state.settle_kernel, {"PARTS": 512}, 1),
        "scores": (attention.scores_kernel, scores, 4),
        "query": (attention.scores_kernel, one_query, 4),
        "softmax": (attention.softmax_kernel, {"HAS_SINKS": True, "N": 1024}, 4),
        "gather": (gather.gather_kernel, {"N": 1024}, 4),
        "product": (moments.product_kernel, {"T": 64, "K": 32}, 4),
    }


def check(case: str) -> None:
    """What one case must hold; runs in a process that was started without the interpreter."""
    from precollapse.kernels.triton_forms import tile_sizes

    if case == "sizes of one":
        return check_ones()
    name, arch = case.rsplit("-", 1)[0], int(case.rsplit("-", 1)[1])
    together = 1
    if ":" in name:
        key, config, kind = tile_cases(arch)[name]
        found = tiles(arch, key, config, kind)
        assert (found["wgmma"] > 0) if arch == 90 and key > 64 else (found["wgmma"] + found["mma"] > 0), found
        if arch == 90 and key <= 64 and config == tile_sizes.TABLE[key][1][0]:
            together = 2  # the programs that are to run on one multiprocessor
    else:
        kernel, constants, warps = others()[name]
        found = compiled(kernel, arch, constants, warps, 3, {"x": "*fp32"} if name == "product" else {})
        if name == "product":
            assert found["wgmma"] + found["mma"] > 0, found
    assert found["spills"] == 0 and found["stack"] == 0, found
    assert together * found["shared"] <= SHARED_LIMIT[arch], found


def lowered(fn: Any, constants: dict[str, Any]) -> None:
    """The front end alone: what the kernel's Python means for these types and constants."""
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler.compiler import make_backend

    signature = {name: "constexpr" if name in constants else POINTERS.get(name, "i32") for name in fn.arg_names}
    target = GPUTarget("cuda", 90, 32)
    backend = make_backend(target)
    options = backend.parse_options({"num_warps": 4})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    source = ASTSource(fn, signature, constants, {})
    source.make_ir(target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context)


def check_ones() -> None:
    """An integer argument of 1 reaches a kernel as a constant, which has no methods: each in turn, and all at once."""
    from precollapse.kernels.triton_forms import attention, vocab_kernels

    tile = {"GROUP": 16, "EVEN_K": False, "UPCAST": False, "M": 16, "N": 64, "K": 64}
    kernels = [(fn, constants) for fn, constants, _ in others().values()]
    kernels += [(vocab_kernels.tiles_kernel, {**flags, **tile}) for flags in FLAGS.values()]
    kernels += [(vocab_kernels.logits_kernel, {**FLAGS["full"], "GROUP": 0, "N": 4096})]
    scores = others()["scores"][1]
    for mask in range(4):
        for index in (True, False):
            kernels.append((attention.scores_kernel, {**scores, "MASK": mask, "HAS_INDEX": index}))
    for fn, constants in kernels:
        integers = [name for name in fn.arg_names if name not in constants and name not in POINTERS]
        for ones in ([], *([name] for name in integers), integers):
            try:
                lowered(fn, {**constants, **dict.fromkeys(ones, 1)})
            except Exception as error:
                raise AssertionError(f"{fn.__name__} with 1 for {ones}: {error}") from error


DEFAULT = [
    "sizes of one",
    "128x256x64x8x3:plain+top-90",
    "128x256x64x8x3:bias-90",
    "128x128x64x8x4:bias+top-90",
    "128x128x64x8x4:full+top-90",
    "128x128x64x8x4:plain+top-80",
    "128x64x64x8x4:full+top-80",
    "128x64x64x8x4:plain+top+odd-80",
    "128x256x64x8x3:plain+top+odd-90",
    "16x64x128x4x4:full+top-90",
    "16x64x128x4x4:plain+top-80",
    "64x64x128x4x3:full+top-90",
    "logits-90",
    "settle-90",
    "scores-80",
    "query-90",
    "product-90",
]
# Compiled from nothing the rest takes minutes on a small machine.
EVERY = bool(os.environ.get("PRECOLLAPSE_ALL_KERNELS"))
CASES = DEFAULT
if EVERY and not INTERPRETING:
    CASES = DEFAULT + [
        f"{name}-{arch}"
        for arch in (90, 80)
        for name in (*tile_cases(arch), *others())
        if f"{name}-{arch}" not in DEFAULT
    ]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What `check` said of every case ("" when all held), from one process without the interpreter."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["KERNEL_FOLDER"] = str(tmp_path_factory.mktemp("kernels"))
    command = [sys.executable, __file__, *CASES]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3600)
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
