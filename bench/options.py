"""Options of `tokenbus bench`, with vLLM's names where it has them. One declaration gives option, help and check."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from bench.client.target import Backend, PromptFormat

Count = Annotated[int, Meta(ge=1)]
# What several commands have, some with defaults of their own.
PromptFormatOption = Annotated[
    PromptFormat, Meta(description="auto sends token ids where the backend takes them, else text of as many tokens")
]
Burstiness = Annotated[
    float, Meta(description="shape of the gaps' gamma distribution: 1 Poisson, below 1 bursts, above 1 even", gt=0)
]
NumRounds = Annotated[int, Meta(description="measure so many times, with other words each time", ge=1)]


class TargetOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Whom to ask, and how."""

    base_url: Annotated[
        str,
        Meta(
            description="server to measure, e.g. http://127.0.0.1:8000; none: start a node, options of it after --",
            pattern="^$|^https?://[^/]",
            extra={"expects": "a URL such as http://127.0.0.1:8000"},
        ),
    ] = ""
    backend: Annotated[
        Backend, Meta(description="what the server is; openai: any other with OpenAI's API, openai-chat: its chat")
    ] = "tokenbus"
    endpoint: Annotated[str, Meta(description="path to ask; none: /v1/completions, or the chat's for openai-chat")] = ""
    model: Annotated[str, Meta(description="model to ask for; none: the first one served")] = ""
    tokenizer: Annotated[
        str,
        Meta(description="tokenizer.json, its folder, or a name in the model repository; none: that of --model"),
    ] = ""
    prompt_format: PromptFormatOption = "auto"
    ignore_eos: Annotated[
        bool, Meta(description="answers of exactly the planned length; min_tokens where ignore_eos is not known")
    ] = True
    temperature: Annotated[float, Meta(description="of sampling; 0: the likeliest tokens", ge=0)] = 0.0
    extra_body: Annotated[str, Meta(description="JSON object with more fields for every request")] = "{}"
    header: Annotated[list[str], Meta(description="HTTP headers as NAME=VALUE; OPENAI_API_KEY is sent as a key")] = []
    pids: Annotated[
        list[int], Meta(description="processes of the server, measured with all their children: CPU and memory")
    ] = []
    data_dir: Annotated[str, Meta(description="data folder of a running node of ours to measure at --base-url")] = ""
    seed: Annotated[int, Meta(description="of prompts, lengths and arrivals")] = 0
    request_timeout_s: Annotated[float, Meta(description="seconds after which a request counts as failed", gt=0)] = (
        900.0
    )
    num_warmups: Annotated[int, Meta(description="short requests before the measurement", ge=0)] = 4


class ResultOptions(TargetOptions, kw_only=True, frozen=True):
    """And where results go."""

    label: Annotated[str, Meta(description="name of this run in files and comparisons; none: the backend's")] = ""
    save_result: Annotated[bool, Meta(description="write a JSON file")] = False
    result_dir: Annotated[str, Meta(description="folder of that file")] = "."
    result_filename: Annotated[
        str, Meta(description="its name; none: label, command and time; implies --save-result")
    ] = ""
    metadata: Annotated[list[str], Meta(description="KEY=VALUE to note in the file")] = []
    plot: Annotated[str, Meta(description="PNG file to draw; needs the extra `bench` (matplotlib)")] = ""
    percentile_metrics: Annotated[
        str, Meta(description="times in the table: of ttft, tpot, itl and e2el, with commas between")
    ] = "ttft,tpot,itl,e2el"


class DatasetOptions(ResultOptions, kw_only=True, frozen=True):
    """And what is asked."""

    dataset_name: Annotated[
        Literal["random", "prefix_repetition", "sharegpt", "timed_trace"],
        Meta(description="timed_trace replays a log: its times and lengths"),
    ] = "random"
    dataset_path: Annotated[str, Meta(description="file of sharegpt (JSON) or timed_trace (JSON lines)")] = ""
    num_prompts: Annotated[int, Meta(description="requests to send", ge=1)] = 100
    random_input_len: Annotated[int, Meta(description="random: tokens in", ge=1)] = 128
    random_output_len: Annotated[int, Meta(description="random: tokens out", ge=1)] = 128
    random_range_ratio: Annotated[float, Meta(description="random: lengths vary by this share", ge=0, lt=1)] = 0.0
    random_prefix_len: Annotated[int, Meta(description="random: tokens before them that all share", ge=0)] = 0
    prefix_repetition_prefix_len: Annotated[int, Meta(description="prefix_repetition: shared tokens", ge=1)] = 256
    prefix_repetition_suffix_len: Annotated[int, Meta(description="prefix_repetition: own tokens", ge=1)] = 256
    prefix_repetition_num_prefixes: Annotated[int, Meta(description="prefix_repetition: how many", ge=1)] = 10
    prefix_repetition_output_len: Annotated[int, Meta(description="prefix_repetition: tokens out", ge=1)] = 128
    sharegpt_output_len: Annotated[
        Count | None, Meta(description="sharegpt: tokens out; none: as many as the answer in the file has")
    ] = None
    disable_shuffle: Annotated[bool, Meta(description="sharegpt: in the order of the file")] = False
    timed_trace_speed: Annotated[float, Meta(description="timed_trace: 2 replays twice as fast", gt=0)] = 1.0


class ArrivalOptions(DatasetOptions, kw_only=True, frozen=True):
    """And when it is asked, and what counts as good."""

    request_rate: Annotated[float, Meta(description="mean requests per second; inf: all at once", gt=0)] = float("inf")
    burstiness: Burstiness = 1.0
    max_concurrency: Annotated[Count | None, Meta(description="most requests at a time; none: any number")] = None
    goodput: Annotated[list[str], Meta(description="objective in ms: ttft:200 tpot:50 e2el:5000")] = []
