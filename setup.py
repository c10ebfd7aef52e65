"""Build script: the repository root is the package `precollapse`, and csrc is an optional shared library in it.

The library has a plain C interface and is loaded with ctypes, so building it needs a C++ compiler and nothing else: no
torch, no Python headers. Where there is no compiler the package installs without it and uses torch instead.
"""

import os
import platform
import sys
from concurrent.futures import ThreadPoolExecutor
from glob import glob

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

BASE = ["-O3", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-ffp-contract=fast", "-fno-math-errno", "-w", "-g0"]
WIDE = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c", "-mprefer-vector-width=512"]
# Each file is compiled for its own instruction set; which one runs is decided when it is called.
FORMS = {
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": WIDE,
    "avx512_bf16": [*WIDE, "-mavx512bf16"],
}


# Every folder of modules below these; a folder that is added is installed without a word here.
ROOMS = sorted(
    f"precollapse.{os.path.dirname(found).replace(os.sep, '.')}"
    for room in ("analysis", "cli", "hooks", "kernels", "reports", "store", "studies")
    for found in glob(f"{room}/**/__init__.py", recursive=True)
)


class BuildModules(build_py):
    """Leaves this script out, which stands among the package's modules."""

    def find_package_modules(self, package, package_dir):
        return [module for module in super().find_package_modules(package, package_dir) if module[1] != "setup"]


class BuildNative(build_ext):
    """Compiles csrc, leaving out what the compiler does not know."""

    def copy_file(self, infile, outfile, **options):
        """Into place by renaming: a process that has the library loaded, or loads it now, never sees half of one."""
        _, copied = super().copy_file(infile, f"{outfile}.part", **options)
        os.replace(f"{outfile}.part", outfile)
        return outfile, copied

    def build_extension(self, ext):
        compiler, folder = self.compiler, self.build_temp
        forms = FORMS if platform.machine().lower() in ("x86_64", "amd64") else {}
        compiler.mkpath(folder)
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # each is a compiler of its own, on a core of its own
            portable, *wide = [
                pool.submit(compiler.compile, [f"csrc/form_{form}.cpp"], folder, extra_postargs=BASE + flags)
                for form, flags in {"portable": [], **forms}.items()
            ]
        objects = portable.result()
        have = []
        if forms:
            for form, built in zip(forms, wide, strict=True):
                try:
                    objects += built.result()
                except Exception as error:
                    print(
                        f"csrc: the {form} form is left out, this compiler cannot build it ({error})", file=sys.stderr
                    )
                else:
                    have.append((f"PC_HAVE_{form.upper()}", None))
        objects += compiler.compile(["csrc/precollapse.cpp"], folder, macros=have, extra_postargs=BASE)
        compiler.link_shared_object(
            objects, self.get_ext_fullpath(ext.name), extra_postargs=["-pthread"], target_lang="c++"
        )


setup(
    package_dir={"precollapse": "."},
    packages=["precollapse", *ROOMS],
    package_data={"precollapse": ["py.typed"], "precollapse.reports": ["templates/*"]},
    ext_modules=[
        Extension(
            "precollapse.kernels._native",
            sources=[
                "csrc/precollapse.cpp",
                "csrc/form_portable.cpp",
                *(f"csrc/form_{form}.cpp" for form in FORMS),
            ],
            depends=sorted(glob("csrc/**/*.h", recursive=True)),
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildNative, "build_py": BuildModules},
)
