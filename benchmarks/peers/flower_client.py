"""Flower's client side: a module of its own, so that Ray's workers import it and keep net and data between messages."""

from functools import cache

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from job import Assignment
from torch import nn

app = ClientApp()


@cache
def resident() -> tuple[Assignment, nn.Module]:
    job = Assignment.read()
    return job, job.build()


@app.train()
def train(message: Message, context: Context) -> Message:
    job, net = resident()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    which = int(context.node_config["partition-id"])
    job.train_client(net, which)
    metrics = MetricRecord({"num-examples": job.train[1].shape[1]})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)
