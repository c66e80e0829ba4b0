"""The workloads of the paper by name, and its Table I, made from them."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType

import polars as pl

from tpunb.errors import TpunbError
from tpunb.frames.words import plain
from tpunb.workloads.bert import Bert
from tpunb.workloads.dcgan import Dcgan
from tpunb.workloads.images import Images, Scenes
from tpunb.workloads.qanet import QANet
from tpunb.workloads.resnet import ResNet
from tpunb.workloads.retinanet import RetinaNet
from tpunb.workloads.texts import Questions, Sentences
from tpunb.workloads.workload import Workload

_LANGUAGE, _IMAGES, _ANSWERS = "Natural Language", "Image Generation", "Q/A Natural Language"
_OBJECTS, _CLASSES = "Object Detection", "Image Classification"
_GIB = 1024.0  # MiB
_SQUAD, _COCO, _CIFAR = 422.27, 48.49 * _GIB, 178.87  # MiB
_SQUAD_EXAMPLES = 87_599
_SMALL = Images(32, 32, 10, file="png")


def _named(*workloads: Workload) -> Mapping[str, Workload]:
    return MappingProxyType({one.name: one for one in workloads})


# words of a sentence, examples of the training data, and at scale 0 the steps of an epoch: fewer for smaller datasets
WORKLOADS = _named(
    Workload("bert-squad", _LANGUAGE, "BERT", "SQuAD", _SQUAD, Bert(Questions(), _SQUAD_EXAMPLES, 128)),
    Workload("bert-mrpc", _LANGUAGE, "BERT", "MRPC", 2.85, Bert(Sentences(22, 22, 2), 3668, 80)),
    Workload("bert-mnli", _LANGUAGE, "BERT", "MNLI", 430.61, Bert(Sentences(20, 10, 3), 392_702, 144)),
    Workload("bert-cola", _LANGUAGE, "BERT", "CoLA", 1.44, Bert(Sentences(8, 0, 2), 8551, 104)),
    Workload("dcgan-cifar10", _IMAGES, "DCGAN", "CIFAR-10", _CIFAR, Dcgan(_SMALL, 50_000)),
    Workload("dcgan-mnist", _IMAGES, "DCGAN", "MNIST", 56.21, Dcgan(Images(28, 28, 10, 1, "png"), 60_000)),
    Workload("qanet-squad", _ANSWERS, "QANet", "SQuAD", _SQUAD, QANet(Questions(), _SQUAD_EXAMPLES)),
    Workload("retinanet-coco", _OBJECTS, "RetinaNet", "COCO", _COCO, RetinaNet(Scenes(480, 640, 90))),
    Workload(
        "resnet-imagenet", _CLASSES, "ResNet", "ImageNet", 143.38 * _GIB, ResNet(Images(375, 500, 1000), 1_281_167)
    ),
    # section VI.C
    Workload(
        "qanet-squad-half",
        _ANSWERS,
        "QANet",
        "half of SQuAD",
        _SQUAD / 2,
        QANet(Questions(), _SQUAD_EXAMPLES, 0.5),
        True,
    ),
    Workload(
        "retinanet-coco-half",
        _OBJECTS,
        "RetinaNet",
        "half of COCO",
        _COCO / 2,
        RetinaNet(Scenes(480, 640, 90), 0.5),
        True,
    ),
    Workload("resnet-cifar10", _CLASSES, "ResNet", "CIFAR-10", _CIFAR, ResNet(Images(32, 32, 10), 50_000), True),
)
"""By name."""


def workload(name: str) -> Workload:
    """Return the workload of that name, whatever its capitals.

    Raises
    ------
    TpunbError
        There is none.

    >>> workload("BERT-MRPC")
    Workload(name='bert-mrpc', task='Natural Language', model='BERT', dataset='MRPC', size_mib=2.85, reduced=False)
    """
    if name.casefold() in WORKLOADS:
        return WORKLOADS[name.casefold()]
    near = get_close_matches(name.casefold(), WORKLOADS, n=1)
    hint = f"is it {near[0]!r}?" if near else f"known are {', '.join(WORKLOADS)}"
    raise TpunbError(f"no workload is called {plain(name)!r}", hint=hint)


def table_1() -> pl.DataFrame:
    """Return Table I of the paper: workload, task, model, dataset, its size, and the default training parameters.

    One row a model and dataset; the parameters are those that a run at scale 1 has.

    >>> table_1().select("model", "dataset", "size_mib").row(1)
    ('BERT', 'MRPC', 2.85)
    """
    rows = [
        {
            "workload": one.name,
            "task": one.task,
            "model": one.model,
            "dataset": one.dataset,
            "size_mib": one.size_mib,
            "parameters": "\n".join(f"{name}: {value:g}" for name, value in one.table_1.items()),
        }
        for one in WORKLOADS.values()
        if not one.reduced
    ]
    return pl.DataFrame(rows)
