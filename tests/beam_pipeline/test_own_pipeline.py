"""The transforms are importable."""

from __future__ import annotations

import subprocess
import sys

import pytest

import beam_pipeline

pytestmark = pytest.mark.process


def test_the_face_loads_nothing_until_it_is_asked():
    code = (
        "import sys, beam_pipeline\n"
        "assert 'WriteBalancedTFRecord' in dir(beam_pipeline)\n"
        "assert not {'apache_beam', 'tensorflow', 'PIL'} & set(sys.modules)\n"
        "import beam_pipeline.run\n"  # its processes start while Beam is imported
        "assert 'apache_beam' not in sys.modules\n"
        "assert beam_pipeline.WriteBalancedTFRecord.__name__ == 'WriteBalancedTFRecord'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_name_of_the_face_is_there():
    assert "ListImages" in beam_pipeline.__all__
    for name in beam_pipeline.__all__:
        assert getattr(beam_pipeline, name).__name__ == name
