"""Builds the native kernel beside the package, where there is a C++ compiler; all else is in pyproject.toml."""

from glob import glob

from setuptools import Extension, setup

FOLDER = "src/palmette/learner/kernel"

# No instruction set is named here: the sources name theirs, and the best one is chosen when it runs. Products must not be
# fused with sums but where they are written so, or the instruction sets would give different bits.
setup(
    ext_modules=[
        Extension(
            "palmette.learner.kernel.library",
            sorted(glob(f"{FOLDER}/*.cpp")),
            depends=sorted(glob(f"{FOLDER}/*.h")),
            language="c++",
            extra_compile_args=["-std=c++17", "-O3", "-g0", "-ffp-contract=off", "-pthread", "-w"],
            extra_link_args=["-pthread"],
            py_limited_api=True,  # it does not use Python's interface, so one library serves all versions
            optional=True,  # without a compiler the rest is installed, and the fused backend does the work
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},  # so does one wheel
)
