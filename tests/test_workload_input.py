"""What the workloads read: records, texts and their tokens, images, boxes and anchors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optional import lazy

from tpunb.studies.paper.workloads import boxes, image_input, records, scene_input, text_input, texts, wordpiece
from tpunb.studies.paper.workloads.images import Images, Scenes, paint
from tpunb.studies.paper.workloads.sizes import Plan

tf = lazy("tensorflow")

PLAN = Plan(batch=2, epochs=1, epoch_steps=3, eval_steps=2, examples=4)
PIECES = [*texts.SPECIAL, "un", "##aff", "##able", "##a", "able", "."]


def first(source, seed=0):
    return next(source.records(np.random.default_rng(seed)))


def features(record):
    decoded = tf.train.Example.FromString(record).features.feature
    return {name: getattr(value, value.WhichOneof("kind")).value for name, value in decoded.items()}


# ---- records


def numbers(count):
    return (records.example({"number": number}) for number in range(count))


def number(_, record):
    return tf.io.parse_single_example(record, {"number": tf.io.FixedLenFeature([], tf.int64)})["number"], 0


def test_an_example_holds_its_features():
    record = records.example({"text": "ä", "bytes": b"\xff", "one": 7, "many": [1, 2], "real": [0.5], "none": []})
    decoded = {name: list(values) for name, values in features(record).items()}
    assert decoded == {
        "text": ["ä".encode()],
        "bytes": [b"\xff"],
        "one": [7],
        "many": [1, 2],
        "real": [0.5],
        "none": [],
    }


def test_records_are_written_once(tmp_path):
    files = records.write(tmp_path / "new", "train", numbers(10), 6)
    assert sorted((tmp_path / "new").iterdir()) == files, "nothing unfinished is left"
    held = [features(one.numpy())["number"][0] for one in tf.data.TFRecordDataset([str(file) for file in files])]
    assert sorted(held) == [0, 1, 2, 3, 4, 5]
    assert records.write(tmp_path / "new", "train", iter(()), 6) == files


def test_a_split_is_repeated_in_order_for_its_steps(tmp_path):
    files = records.write(tmp_path, "eval", numbers(3), 3)
    for naive in (False, True):
        data = records.pipeline(files, number, PLAN, "eval", naive=naive, seed=0)
        assert [batch.tolist() for batch, _ in data.as_numpy_iterator()] == [[0, 1], [2, 0]]


def test_training_data_are_shuffled_by_the_seed(tmp_path):
    files = records.write(tmp_path, "train", numbers(4), 4)

    def read(seed):
        data = records.pipeline(files, number, PLAN, "train", naive=False, seed=seed)
        return [value for batch, _ in data.as_numpy_iterator() for value in batch.tolist()]

    tf.random.set_seed(None)
    assert read(1) == read(1)
    assert len({tuple(read(seed)) for seed in range(6)}) > 1


def test_temporary_records_have_one_folder():
    assert records.temporary() == records.temporary()
    assert Path(records.temporary().name).is_dir()


# ---- tokens


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("unaffable", [["un", "##aff", "##able"]]),
        ("Unaffable able.", [["un", "##aff", "##able"], ["able"], ["."]]),
        ("una unq", [["un", "##a"], ["[UNK]"]]),
        ("", []),
    ],
)
def test_words_are_cut_into_the_longest_pieces(text, tokens):
    cut = wordpiece.Tokens(PIECES).pieces(wordpiece.split(text))
    assert [[PIECES[place] for place in row] for row in cut.to_list()] == tokens


def greedy(word, known):
    """Return the pieces of a word by their definition."""
    found, rest = [], word
    while rest:
        starts = [rest[:size] for size in range(len(rest), 0, -1)]
        fits = [start for start in starts if ("##" * bool(found)) + start in known]
        if not fits:
            return ["[UNK]"]
        found.append(("##" * bool(found)) + fits[0])
        rest = rest[len(fits[0]) :]
    return found


KNOWN = [*texts.SPECIAL, *"ab", "##a", "##b", "ab", "##ba", "##aab", "bab"]
TOKENS = []


@given(st.lists(st.text("abc", min_size=1, max_size=6), max_size=4))
def test_pieces_agree_with_the_definition_of_wordpiece(words):
    if not TOKENS:
        TOKENS.append(wordpiece.Tokens(KNOWN))
    cut = TOKENS[0].pieces(tf.constant(words, tf.string)).to_list()
    assert [[KNOWN[place] for place in row] for row in cut] == [greedy(word, KNOWN) for word in words]


def test_the_language_has_no_unknown_words():
    known = texts.vocabulary()
    tokens = wordpiece.Tokens(known)
    cut = tokens.pieces(tf.constant(texts.words()))
    assert tokens.unknown not in cut.flat_values.numpy()
    assert known[:4] == texts.SPECIAL
    assert len(set(known)) == len(known) <= 1024, "a model at scale 0 knows them all"
    put_together = ["".join(known[place].removeprefix("##") for place in row) for row in cut.to_list()[-50:]]
    assert tuple(put_together) == texts.words()[-50:]


def test_a_vocabulary_next_to_the_records_is_used(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[unused]\n[UNK]\n[CLS]\n[SEP]\nhello\n")
    tokens = wordpiece.tokens_of(tmp_path, 100)
    assert (tokens.unknown, tokens.begin, tokens.separator) == (2, 3, 4)
    assert tokens.words(tf.constant(["hello", "world"])).numpy().tolist() == [5, 2]


def test_letters_are_bytes():
    spelled = wordpiece.letters(tf.constant(["ab", "x" * 40])).numpy()
    assert spelled.shape == (2, wordpiece.LETTERS)
    assert spelled[0].tolist() == [97, 98] + [0] * 14


def test_padding_fills_and_truncates():
    assert wordpiece.padded(tf.constant([1, 2]), 4).numpy().tolist() == [1, 2, 0, 0]
    assert wordpiece.padded(tf.constant([[1, 1], [2, 2]]), 1).numpy().tolist() == [[1, 1]]


# ---- texts as models read them


def test_a_pair_is_joined():
    record = records.example({"text_a": "un able", "text_b": "able", "label": 1})
    got, label = text_input.sentence_pairs(wordpiece.Tokens(PIECES), 9)(0, record)
    assert [PIECES[place] for place in got["tokens"].numpy()][:6] == ["[CLS]", "un", "able", "[SEP]", "able", "[SEP]"]
    assert got["segments"].numpy().tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 0]
    assert int(label) == 1


def test_a_sentence_alone_has_no_second_part():
    record = records.example({"text_a": "un", "text_b": "", "label": 0})
    got, _ = text_input.sentence_pairs(wordpiece.Tokens(PIECES), 5)(0, record)
    assert got["tokens"].numpy().tolist() == [2, 4, 3, 0, 0]


@pytest.mark.parametrize(("one", "other"), [(20, 20), (20, 1), (1, 20)])
def test_the_longer_sentence_is_truncated(one, other):
    record = records.example({"text_a": "un " * one, "text_b": "able " * other, "label": 0})
    got, _ = text_input.sentence_pairs(wordpiece.Tokens(PIECES), 11)(0, record)
    tokens = got["tokens"].numpy().tolist()
    assert tokens.count(3) == 2, "both separators are there"
    assert (tokens.count(4), tokens.count(8)) == {20: {20: (4, 4), 1: (7, 1)}, 1: {20: (1, 7)}}[one][other]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("length", [64, 128, 400])
def test_the_span_is_the_answer(seed, length):
    record = first(texts.Questions(), seed)
    known = texts.vocabulary()
    got, span = text_input.paragraphs(wordpiece.Tokens(known), length)(0, record)
    answer = got["tokens"].numpy()[int(span["start"]) : int(span["end"]) + 1]
    spelled = "".join(f" {known[place]}".replace(" ##", "") for place in answer).strip()
    assert spelled == features(record)["answer"][0].decode()
    assert got["segments"].numpy()[int(span["start"])] == 1


def test_words_and_letters_of_a_question():
    record = records.example({"question": "Un able ?", "context": "x un ab.", "answer": "ab", "answer_start": 5})
    got, span = text_input.words_and_letters(wordpiece.Tokens(PIECES), 5, 4)(0, record)
    assert got["question"].numpy().tolist() == [4, 8, 1, 0]
    assert got["context"].numpy().tolist() == [1, 4, 1, 9, 0]
    assert bytes(got["context_letters"].numpy()[1].astype("uint8")).rstrip(b"\0") == b"un"
    assert (int(span["start"]), int(span["end"])) == (2, 2)


def test_an_answer_is_found_by_letters_not_bytes():
    record = records.example({"question": "?", "context": "äöü un", "answer": "un", "answer_start": 4})
    _, span = text_input.words_and_letters(wordpiece.Tokens(PIECES), 5, 4)(0, record)
    assert int(span["start"]) == 1


@pytest.mark.parametrize(("source", "mean"), [(texts.Sentences(22, 22, 2), 22), (texts.Sentences(8, 0, 2), 8)])
def test_sentences_have_the_configured_lengths(source, mean):
    made = source.records(np.random.default_rng(1))
    decoded = [features(next(made)) for _ in range(200)]
    lengths = [len(one["text_a"][0].split()) - 1 for one in decoded]
    assert abs(np.mean(lengths) - mean) < 0.15 * mean
    assert {one["label"][0] for one in decoded} == {0, 1}


# ---- images


@pytest.mark.parametrize(("images", "kib"), [(Images(375, 500, 10), (40, 160)), (Images(32, 32, 10), (0.5, 3))])
def test_files_have_the_size_of_photographs(images, kib):
    encoded = features(first(images))["image/encoded"][0]
    assert kib[0] < len(encoded) / 1024 < kib[1]
    assert tf.io.decode_image(encoded).shape == (images.height, images.width, 3)


def test_an_ellipse_fills_its_box():
    image = np.zeros((10, 10, 3), "float32")
    paint(image, (2, 4, 6, 10), [1.0, 2.0, 3.0])
    filled = np.argwhere(image[..., 1] == 2)
    assert filled.min(0).tolist() == [2, 4]
    assert filled.max(0).tolist() == [5, 9]
    assert image[2, 4].tolist() == [0, 0, 0], "but for its corners"


def test_training_crops_are_random_by_number_and_evaluation_crops_are_not():
    record = first(Images(60, 80, 10))
    crop, centre = (image_input.cropped(32, training=training, seed=3) for training in (True, False))
    drawn = [crop(tf.constant(number, tf.int64), record)[0].numpy() for number in (0, 0, 1)]
    assert drawn[0].shape == (32, 32, 3)
    assert (drawn[0] == drawn[1]).all()
    assert (drawn[0] != drawn[2]).any()
    asked = [centre(tf.constant(number, tf.int64), record)[0].numpy() for number in (0, 1)]
    assert (asked[0] == asked[1]).all()


def test_small_images_are_lossless():
    record = first(Images(28, 28, 10, 1, "png"))
    image, label = image_input.small(28, 28, 1)(0, record)
    exact = tf.io.decode_png(features(record)["image/encoded"][0]).numpy()
    assert np.allclose((image.numpy() + 1) * 127.5, exact, atol=1e-3)
    assert int(label) == features(record)["image/class/label"][0]


# ---- objects


def test_anchors_are_centred_on_their_cells():
    every = boxes.anchors(128)
    assert every.shape == (9 * (16**2 + 8**2 + 4**2 + 2**2 + 1), 4)
    assert np.allclose((every[4, :2] + every[4, 2:]) / 2, 4), "the first cell's centre"
    areas = np.prod(every[:, 2:] - every[:, :2], axis=1)
    assert np.allclose(sorted(areas[:9] ** 0.5), np.repeat(32 * 2 ** (np.arange(3) / 3), 3))


def test_overlap_is_intersection_over_union():
    some = tf.constant([[0.0, 0, 2, 2], [5, 5, 6, 6]])
    others = tf.constant([[0.0, 0, 2, 2], [1, 1, 3, 3], [0, 0, 0, 0]])
    assert np.allclose(boxes.overlaps(some, others), [[1, 1 / 7, 0], [0, 0, 0]])


def test_anchors_match_objects_by_overlap_and_each_object_has_an_anchor():
    every = tf.constant([[0.0, 0, 10, 10], [0, 0, 10, 22], [50, 50, 60, 60], [0, 0, 10, 9]])
    objects = tf.constant([[0.0, 0, 10, 10], [56, 56, 62, 62]])
    got = boxes.targets(objects, tf.constant([3, 5]), every)
    assert got["class"].numpy().tolist() == [3, boxes.IGNORED, 5, 3]
    wanted = [[0, 0, 0, 0, 1], [0, 0, 0, 0, 0], [0.4, 0.4, np.log(0.6), np.log(0.6), 1]]
    assert np.allclose(got["box"][:3], wanted, atol=1e-6)


def test_an_image_without_objects_is_all_background():
    every = tf.constant(boxes.anchors(128))
    got = boxes.targets(tf.zeros([0, 4]), tf.zeros([0], tf.int32), every)
    assert set(got["class"].numpy().tolist()) == {boxes.BACKGROUND}
    assert not got["box"].numpy().any()


@pytest.mark.parametrize("training", [True, False])
def test_boxes_are_transformed_with_their_image(training):
    record = first(Scenes(60, 80, 4), 2)
    prepare = scene_input.scenes(128, training=training, seed=0)
    every = boxes.anchors(128)
    for number in range(4):
        image, got = prepare(tf.constant(number, tf.int64), record)
        assert image.shape == (128, 128, 3)
        has = got["class"].numpy() >= 0
        assert has.any()
        sides = every[has, 2:] - every[has, :2]
        centres = (every[has, 2:] + every[has, :2]) / 2 + got["box"].numpy()[has, :2] * sides
        sizes = np.exp(got["box"].numpy()[has, 2:4]) * sides
        assert (centres - sizes / 2 > -0.1).all()
        assert (centres + sizes / 2 < 128.1).all()


def test_an_object_is_inside_its_box():
    from tpunb.studies.paper.workloads.images import encoded

    picture = np.zeros((64, 64, 3), "float32")
    paint(picture, (16, 8, 48, 32), [255.0, 0, 0])
    edges = {"ymin": 16 / 64, "xmin": 8 / 64, "ymax": 48 / 64, "xmax": 32 / 64}
    record = records.example(
        {
            "image/encoded": encoded(picture, np.random.default_rng(0), 3, "jpeg"),
            "image/object/class/label": [1],
            **{f"image/object/bbox/{edge}": [value] for edge, value in edges.items()},
        }
    )
    every = boxes.anchors(128)
    for number in range(8):  # turned over or not, larger or smaller
        image, got = scene_input.scenes(128, training=True, seed=1)(tf.constant(number, tf.int64), record)
        at = int(np.argmax(got["class"].numpy() == 0))
        assert got["class"].numpy()[at] == 0
        side = every[at, 2:] - every[at, :2]
        centre = (every[at, 2:] + every[at, :2]) / 2 + got["box"].numpy()[at, :2] * side
        red = image.numpy()[int(centre[0]), int(centre[1])]
        assert red[0] > 1
        assert red[1] < -1
