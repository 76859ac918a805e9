"""What finished datasets bring to a build, and how their records are listed."""

import dataclasses

import pytest

from beam_pipeline.inputs.datasets import open_inputs
from beam_pipeline.options import BuildOptions, CopiedInput, ImageOptions, InputOptions, PlanOptions
from imageshards.errors import UserError
from tests.support.dataset_factory import Dataset
from tests.support.errors import refused


@pytest.fixture
def made(tmp_path):
    return Dataset(tmp_path / "a")


def opened(*inputs, given=(), **more) -> BuildOptions:
    first, *others = (InputOptions(str(path)) for path in inputs)
    return open_inputs(BuildOptions(first, "/out", tuple(others), given=frozenset(given), **more))


def error_of(*inputs, given=(), **more) -> str:
    with pytest.raises(UserError) as error:
        opened(*inputs, given=given, **more)
    return str(error.value)


def test_a_folder_with_a_manifest_is_a_dataset_whose_options_the_build_takes(made, tmp_path):
    made.manifest["options"] = {"plan": {"splits": {"train": 0.5, "test": 0.5}, "salt": "s"}}
    made.save()
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    found = opened(tmp_path / "photos", made.directory)
    assert [source.layout for source in found.sources] == ["auto", "dataset"]
    (copied,) = found.more_sources
    assert isinstance(copied, CopiedInput) and copied.keeps_splits
    assert copied.fingerprint == made.manifest["fingerprint"]
    # Datasets from before profiles were converted do not say --icc.
    assert "icc" not in made.manifest["image"]
    assert found.image == ImageOptions(height_px=16, width_px=16, icc="drop")
    assert found.plan.splits == {"train": 0.5, "test": 0.5} and found.plan.salt == "s"
    assert found.plan.pinned_classes == ("cat", "dog")


def test_given_limits_replace_the_limits_of_the_dataset(made):
    image = ImageOptions(max_pixels=5, max_bytes=7)
    found = opened(made.directory, given={"max_pixels"}, image=image).image
    assert (found.max_pixels, found.max_bytes) == (5, made.manifest["image"]["max_bytes"])


def test_given_splits_are_drawn_again_unless_the_dataset_has_the_same(made):
    plan = PlanOptions(splits={"train": 0.5, "test": 0.5})
    again = opened(made.directory, given={"splits"}, plan=plan)
    assert isinstance(again.source, CopiedInput) and not again.source.keeps_splits
    assert again.plan.splits == plan.splits
    own = {"splits": dict(plan.splits), "salt": plan.salt}
    made.manifest["options"] = {"plan": own, "input": {"group_column": "who"}}
    made.save()
    same = opened(made.directory, given={"splits"}, plan=plan).source
    assert isinstance(same, CopiedInput) and same.keeps_splits
    other = dataclasses.replace(plan, splits={"train": 1.0})
    said = error_of(made.directory, given={"splits"}, plan=other)
    assert "group_column='who'" in said and "leave splits out" in said


def test_another_image_option_is_refused_with_both_values(made, tmp_path):
    said = error_of(made.directory, given={"quality"}, image=ImageOptions(quality=80))
    assert "quality received 80" in said and "quality=90" in said and "leave it out" in said
    other = Dataset(tmp_path / "b")
    other.manifest["image"]["size"] = [16, 32]
    other.save()
    said = error_of(made.directory, other.directory)
    assert "image_size='16x16'" in said and "image_size='16x32'" in said
    assert str(made.directory) in said and str(other.directory) in said and "again" in said


def test_a_manifest_that_does_not_say_how_pictures_were_made(made):
    del made.manifest["image"]["filter"]
    made.save()
    assert "'filter'" in error_of(made.directory) and "original images" in error_of(made.directory)


def with_age(path, as_given: bool = True) -> Dataset:
    made = Dataset(path)
    made.manifest["features"] |= {"age": {"dtype": "float32", "shape": []}}
    made.manifest["options"] = {"columns_as_given": as_given}
    made.save()
    return made


def test_columns_are_copied_where_datasets_agree(tmp_path):
    plain = with_age(tmp_path / "a")
    found = opened(plain.directory).copied
    assert found and found.as_given and found.transform == str(plain.directory / "transform")
    with_age(tmp_path / "b")
    assert opened(plain.directory, tmp_path / "b").copied == found
    scaled = with_age(tmp_path / "c", as_given=False)
    alone = opened(scaled.directory).copied
    assert alone and not alone.as_given


def test_columns_that_would_have_to_be_analysed_again_are_refused(tmp_path):
    first = with_age(tmp_path / "a", as_given=False)
    second = with_age(tmp_path / "b", as_given=False)
    said = error_of(first.directory, second.directory)
    assert "age:float" in said and "original tables" in said
    none = Dataset(tmp_path / "c")
    said = error_of(first.directory, none.directory)
    assert "age:float" in said and "(none)" in said and str(none.directory) in said
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    said = error_of(first.directory, tmp_path / "photos")
    assert "cannot be joined with" in said and "original tables together" in said
    plain = with_age(tmp_path / "d")
    assert f"input received '{plain.directory}'" in error_of(plain.directory, tmp_path / "photos")
    said = error_of(first.directory, transform_module="m.py")
    assert "transform_module" in said and "leave it out" in said


def test_flags_that_are_for_no_input_are_refused_and_others_stay_where_they_belong(made, tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_text("image,label,who\na.jpg,cat,x\n")
    source = InputOptions(str(made.directory))
    options: dict = {"label_regex": "^(a)", "label_separator": "|"}
    for flag, value in options.items():
        given = InputOptions(source.input, **{flag: value})
        with refused(flag, given.input):
            open_inputs(BuildOptions(given, "/out"))
    named = InputOptions(str(rows), image_column="image", allow_any_path=True)
    copied = dataclasses.replace(named, input=str(made.directory))
    found = open_inputs(BuildOptions(named, "/out", (copied,)))
    assert [source.image_column for source in found.sources] == ["image", None]
    assert [source.allow_any_path for source in found.sources] == [True, False]
