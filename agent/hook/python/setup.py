"""Builds the two native pieces, neither of which is needed: without a compiler the package works by the socket alone.

_tap              the fast way: an extension of the stable ABI, one for all Pythons from 3.8 on
libtokengauge_tap the function by itself, for ctypes: other Pythons, and whoever cannot load the extension
"""
import os
import shutil

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

HERE = os.path.dirname(os.path.abspath(__file__))
HEADER = os.path.join(HERE, "..", "include", "tokengauge_tap.h")
INCLUDE = os.path.dirname(HEADER) if os.path.exists(HEADER) else os.path.join(HERE, "include")
SOURCES = "src/tokengauge_hook/"


class Build(build_ext):
    """Builds the library beside the extension."""

    def run(self):
        super().run()
        try:
            objects = self.compiler.compile([SOURCES + "library.c"], output_dir=self.build_temp, include_dirs=[INCLUDE], extra_preargs=["-O2", "-fPIC"])
            # Where the extension lies: in the tree of an editable install, else in what becomes the wheel.
            folder = os.path.join("src" if self.inplace else self.build_lib, "tokengauge_hook")
            os.makedirs(folder, exist_ok=True)
            self.compiler.link_shared_object(objects, os.path.join(folder, "libtokengauge_tap.so"))
        except Exception as error:  # as setuptools does with an optional extension
            self.warn("libtokengauge_tap is not built: %s" % error)


class Source(sdist):
    """Takes the header along."""

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        os.makedirs(os.path.join(base_dir, "include"), exist_ok=True)
        shutil.copy(os.path.join(INCLUDE, "tokengauge_tap.h"), os.path.join(base_dir, "include"))


setup(
    ext_modules=[
        Extension(
            "tokengauge_hook._tap",
            [SOURCES + "_tap.c"],
            include_dirs=[INCLUDE],
            define_macros=[("Py_LIMITED_API", "0x03080000")],
            extra_compile_args=["-O2"],
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp38"}},
    cmdclass={"build_ext": Build, "sdist": Source},
)
