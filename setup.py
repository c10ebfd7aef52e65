"""Build script: the repository root is the package `precollapse`."""

from setuptools import setup

setup(
    package_dir={"precollapse": "."},
    packages=[
        "precollapse",
        "precollapse.hooks",
        "precollapse.hooks.backends",
        "precollapse.kernels",
        "precollapse.store",
        "precollapse.studies",
        "precollapse.analysis",
    ],
)
