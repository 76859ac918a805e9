"""What finished datasets bring to a build, and how their records are listed."""

import dataclasses

import pytest

from beam_pipeline.inputs.datasets import list_records, open_inputs, shards_to_list
from beam_pipeline.inputs.listing import schemas_of
from beam_pipeline.options import BuildOptions, CopiedInput, ImageOptions, InputOptions, PlanOptions
from beam_pipeline.pipeline import listing_options
from imageshards.errors import UserError
from imageshards.example import decode_example
from imageshards.storage import read_range
from tests.support.dataset_factory import Dataset
from tests.support.errors import refused


@pytest.fixture
def made(tmp_path):
    return Dataset(tmp_path / "a")


def opened(*inputs, given=(), **more) -> BuildOptions:
    first, *others = (InputOptions(str(path)) for path in inputs)
    return open_inputs(BuildOptions(first, "/out", tuple(others), given=frozenset(given), **more))


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


def test_given_splits_are_drawn_again_also_where_the_dataset_has_the_same(made):
    """The fractions in a manifest need not have drawn the splits: folders, or a join, may have."""
    plan = PlanOptions(splits={"train": 0.5, "test": 0.5})
    own = {"splits": dict(plan.splits), "salt": plan.salt}
    for options in ({}, {"plan": own}):
        made.manifest["options"] = options
        made.save()
        again = opened(made.directory, given={"splits"}, plan=plan)
        assert isinstance(again.source, CopiedInput) and not again.source.keeps_splits
        assert again.plan.splits == plan.splits


@pytest.mark.parametrize(
    "groups", [{"group_column": "who"}, {"label_regex": "^(?P<label>[a-z]+)(?P<group>.)"}]
)
def test_splits_of_groups_are_kept_and_not_drawn_again_from_keys(made, tmp_path, groups):
    """Also where the dataset is a copy of the first, or joined with it."""
    for options in ({"input": groups}, {"input": {"group_column": None}, "more_inputs": [groups]}):
        made.manifest["options"] = options
        made.save()
        kept = opened(made.directory)
        assert isinstance(kept.source, CopiedInput) and kept.source.keeps_splits
        assert listing_options(kept.source).items() >= groups.items()
        (flag,) = groups
        with refused("splits", f"{flag}="):
            opened(made.directory, given={"splits"})


def test_another_image_option_is_refused_with_both_values(made, tmp_path):
    with refused("quality", "80", "quality=90"):
        opened(made.directory, given={"quality"}, image=ImageOptions(quality=80))
    other = Dataset(tmp_path / "b")
    other.manifest["image"]["size"] = [16, 32]
    other.save()
    with refused(None, "'16x16'", "'16x32'", str(made.directory), str(other.directory)):
        opened(made.directory, other.directory)


def test_a_manifest_that_does_not_say_how_pictures_were_made(made):
    del made.manifest["image"]["filter"]
    made.save()
    with refused(None, "'filter'"):
        opened(made.directory)


def with_age(path, as_given: bool = True) -> Dataset:
    made = Dataset(path)
    made.manifest["features"] |= {"age": {"dtype": "float32", "shape": []}}
    made.manifest["options"] = {"columns_as_given": as_given}
    made.save()
    return made


def test_columns_that_would_have_to_be_analysed_again_are_refused(tmp_path):
    first = with_age(tmp_path / "a", as_given=False)
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    others = [with_age(tmp_path / "b", as_given=False), Dataset(tmp_path / "c")]
    for other in (*(made.directory for made in others), tmp_path / "photos"):
        with refused("input", str(first.directory)):
            opened(first.directory, other)
    plain = with_age(tmp_path / "d")
    with refused("input", f"'{plain.directory}'"):
        opened(plain.directory, tmp_path / "photos")
    with refused("transform_module", "m.py"):
        opened(first.directory, transform_module="m.py")


def test_flags_that_are_for_no_input_are_refused_and_others_stay_where_they_belong(made, tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_text("image,label,who\na.jpg,cat,x\n")
    named = InputOptions(str(rows), image_column="image", allow_any_path=True, columns=())
    copied = dataclasses.replace(named, input=str(made.directory))
    found = open_inputs(BuildOptions(named, "/out", (copied,)))
    assert [bool(schema) for schema in schemas_of(found.sources)] == [True, False]


SHARD = "train-00000-of-00003.tfrecord"


def source_of(made):
    source = open_inputs(BuildOptions(InputOptions(str(made.directory)), "/out")).source
    assert isinstance(source, CopiedInput)
    return source


def refs_of(made):
    (found,) = [f for f in shards_to_list(source_of(made)) if f[0].endswith(SHARD)]
    return list(list_records(*found))


def test_records_are_listed_with_their_places(made):
    refs = refs_of(made)
    assert [ref.label for ref in refs] == ["cat", "dog"] * 3
    assert {ref.split for ref in refs} == {"train"}
    for ref, payload in zip(refs, made.payloads[SHARD], strict=True):
        framed = read_range(ref.uri, ref.offset_bytes, ref.offset_bytes + 16 + ref.size_bytes)
        assert framed[12:-4] == payload
        assert decode_example(payload)["image/filename"] == [ref.key.encode()]


def test_listing_records_without_columns_reads_only_the_index(made):
    refs = refs_of(made)
    assert {ref.source_bytes for ref in refs} == {1000}
    (made.directory / SHARD).write_bytes(b"")
    assert [ref._replace(version=refs[0].version) for ref in refs_of(made)] == refs
    (made.directory / "index" / SHARD.replace("tfrecord", "parquet")).write_bytes(b"half")
    with pytest.raises(UserError, match="is not the file that manifest.json names.*copy it again"):
        refs_of(made)


def test_records_have_no_split_when_splits_are_drawn_again(made):
    source = dataclasses.replace(source_of(made), keeps_splits=False)
    path, split, entry = next(iter(shards_to_list(source)))
    assert split is None and [ref.split for ref in list_records(path, split, entry)] == [None] * 6


def test_a_dataset_replaced_during_the_build_ends_the_build(made):
    source = source_of(made)
    made.manifest["fingerprint"] = "other"
    made.save()
    with refused("input", str(made.directory)):
        list(shards_to_list(source))
