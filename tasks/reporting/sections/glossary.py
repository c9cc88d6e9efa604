"""What every column and word of the report means, in one place."""

from tasks.process import wording
from tasks.reporting.blocks import Block, Terms
from tasks.reporting.results import Results

TITLE = "Glossary"

GLOSSARY: dict[str, str] = {
    "Cell": "One way to spread the work: a strategy, a number of ranks and a launcher. The first cell is the baseline.",
    "Ranks": "Number of training processes (world size); on GPUs one per device.",
    "Seconds per epoch": "Seconds of optimizer steps in one pass over all ranges, mean over the epochs; the slowest "
    "rank's. Checkpoints, logging, evaluation and upload are not inside.",
    "Tokens/s": "Tokens learned from (labels, no padding) per second of training, all ranks together.",
    "Samples/s": "Samples learned from per second of training, all ranks together.",
    "Speedup": "Seconds of the baseline cell divided by seconds of this cell, for the same work. Below 1 is slower. "
    "Where it has an interval, it was measured in turns and is per unit of work.",
    "Efficiency": "Parallel efficiency: speedup divided by how many times more ranks than the baseline. 100 % is "
    "linear.",
    "Speedup of segments": "Lowest and highest speedup of a single segment: a spread, no confidence interval.",
    "Karp-Flatt": "Serial fraction that would explain the speedup: (1/S - 1/N) / (1 - 1/N). 0 is perfect; below 0 the "
    "baseline is suspect.",
    "Data wait": "Share of the step time in which ranks waited for data. Above 5 % the run is called data-bound.",
    "Loss": "Mean negative log-likelihood per token, in nats; per sample where each has a class. Lower is better.",
    "Perplexity": "exp(loss): among how many equally likely tokens the model hesitates on average. Lower is better.",
    "Against base": "Loss minus the base model's loss on the same rows. Below 0 the training helped.",
    "Stage": "One step of the pipeline: a stanza of dvc.yaml.",
    "Model": "The base model, or the last checkpoint of a cell.",
    "Tokens": "Tokens counted, each exactly once.",
    "Range": "Rows start-end of the data set, end exclusive, trained one after another.",
    "Epoch": "One pass over all ranges.",
    "Segment": "One range in one epoch of one cell: the unit that is trained, checkpointed and resumed.",
    "Strategy": "How the update is computed on several ranks: single is the plain model, ddp PyTorch's "
    "DistributedDataParallel, zero1 the same with an update and an optimizer's state that the ranks share out, fsdp2 "
    "PyTorch's fully_shard: each rank holds some rows of every weight, pipeline torch.distributed.pipelining: each "
    "rank holds some layers.",
    "Launcher": "How the ranks were started.",
    "Node": "A machine of several; node 0 is the head, which has the first ranks.",
    "CPU": "Its processor.",
    "CPUs": "CPUs that its ranks could use.",
    "GPUs": "GPUs that its ranks could use.",
    "Address": "Its address, and the network interface that has it, on the way to the head.",
    "GPU energy": "What its GPUs used during the cell's last launch, idle times included; n/a where they do not tell.",
    "Device": "What the ranks computed on, and through what they exchanged gradients.",
    "Threads": "CPU threads of each rank, the same in every cell.",
    "Micro-batch": "Samples in one forward pass of one rank.",
    "Accumulation": "Forward passes of each rank per optimizer step.",
    "Exchanged": "MiB of gradients that each rank exchanged per optimizer step.",
    "Peak memory": "Largest device memory that a rank held; n/a where it is not counted.",
    "Memory": "measured: most that a rank's tensors took of its device in real steps, by their life. predicted: the "
    "same of a rehearsal, which runs the training's code on tensors without memory.",
    "Weights": "Memory of the weights, and of their copies in 16 bit.",
    "Gradients": "Memory of the gradients, in fp32.",
    "Moments": "Memory of what the optimizer keeps of each weight.",
    "Activations": "Memory of what the backward needs, and of whatever is none of the others.",
    "Logits": "Memory of all that is as wide as the vocabulary or the classes.",
    "Communication": "Memory of what is exchanged: buckets of gradients, and layers gathered from other ranks.",
    "In all": "All kinds of memory together, when they are most.",
    "Rank": "Number of a training process, from 0.",
    "Global batch": "Samples per optimizer step, all ranks together.",
    "Allocated": "Most memory of the device that the rank's tensors took.",
    "Reserved": "Most that torch had taken from the device, what lay idle in pieces included; n/a on the CPU.",
    "Host": "Name of a machine; of a rank, the most memory on the host that its process had, packages included.",
    "Host before": "The same before the model was there.",
    "Card": "A GPU by its memory, 10^9 bytes each.",
    "Best cell": "Of the cells whose gates all passed and that need no more, the one with the least time per token.",
    "Time per token": "Seconds of a step / tokens learned from in it, all ranks together, with its 95 % interval.",
    "Needs": "What torch reserved, or 5 % more than was allocated where that is not known, and 1 GiB for CUDA.",
    "Checkpoints": "Seconds spent on writing checkpoints; not part of the training seconds.",
    "Resumed": "How often the training was taken up again from a checkpoint.",
    "Standing": "proven; withheld by a failed gate of the cell or of the baseline; or unproven: a gate of "
    "one of them was not checked.",
    "Gate": "A check that a cell has to pass before its speedup is printed.",
    "Verdict": "passed, failed, or not checked, which is no pass.",
    "Compared": "What of a checked update was held against one process: gradient and squares as the optimizer's "
    "moments have them, weights, running statistics, logged loss, norm of the gradient, loss of the rows one by one.",
    "Step": "Where it was farthest off, beside what is allowed; counted from 1 over the whole training.",
    "Difference": "L2 norm of the differences between the ranks and one process / L2 norm of what the update changed.",
    "Noise floor": "The difference that another order of the same sums, and rounding, make in one process.",
    "Allowed": "The largest difference that still passes: a multiple of the noise floor.",
    "What was compared": "The numbers that the gate looked at.",
    "What it asks": "The question that the gate answers.",
    "Arm": "One of those that took turns while speed was measured: a cell as it is trained, or the baseline inside a "
    "DDP wrapper that it does not need.",
    "Over wrapped": "Speedup against the baseline inside a DDP wrapper, with its 95 % interval: what is left when both "
    "sides pay for the wrapper.",
    "Step time": "Seconds of one optimizer step, the slowest rank's: mean over the timed blocks, with its 95 % "
    "interval. Without logging, checkpoints and evaluation.",
    "Step p50": "Median of single steps, of the rank where it is highest.",
    "Step p95": "95th percentile of single steps, of the rank where it is highest.",
    "Padded tokens/s": "Positions computed per second, padding included, all ranks together.",
    "MFU": "Model FLOPs utilisation: share of the device's peak that the model's own arithmetic used, attention "
    "counted within documents; by PaLM's definition attention spans the whole padded length. n/a where the peak is not "
    "known.",
    "GPU use": "Share of the time in which the cell's GPUs were busy, mean over them.",
    "Power": "Power of the cell's GPUs together.",
    "Energy": "Energy of the cell's GPUs per token learned from.",
    "Part": "A share of the step: the ideal one, what is lost on the way from it, what that does not explain, and the "
    "measured step.",
    "Seconds per step": "Seconds per optimizer step, with the 95 % interval in brackets.",
    "Share of step": "The part / the cell's measured step.",
    "DDP's timer": "What DDP's own timers say of exposed communication, as a cross-check.",
    "How measured": "The run with and without the cause whose difference the part is.",
    "Figure": "What was measured of the cell in both sessions.",
    "Before": "In the last comparable record: same work, cell, CPU and GPU models, gates passed; 95 % interval.",
    "Now": "In this comparison, with its 95 % interval.",
    "Times as good": "Step time before / now, or speedup now / before: above 1 is better. The interval is that of a "
    "difference of two sessions, wider than either's.",
    "Outcome": "faster or slower if the whole interval is on one side of 1. A regression is slower by more than 3 %.",
    "Finished": "When the report first had these figures (UTC).",
    "Gates": "Whether no gate failed.",
    "Machine": "GPUs or processor, driver and torch.",
    "Preflight": "Whether the machine was fit to measure, and what was not.",
    "Change": "What was changed, everything else as it was.",
    "Gain": "Seconds per step of the same cell without the change / with it, with its 95 % interval; above 1 is "
    "faster.",
    "Advice": "recommended only if the whole interval is above 1.",
    "Note": "What else the change brings.",
    "Accuracy": "Share of the held-out rows that are put into the right class, each row counted once.",
    "Top-5 accuracy": "Share of the held-out rows whose class is among the five that are taken for likeliest.",
    "Token accuracy": "Share of the responses' tokens that are taken for likeliest after those before.",
    "Best accuracy": "The highest accuracy of the cell's checkpoints, one per epoch.",
    "Best epoch": "The epoch after which it was; the first of several.",
    "Last accuracy": "The accuracy of the cell's last checkpoint.",
    "Best checkpoint": "The file with the weights of that epoch.",
    "Reached at step": "The optimizer step after which the smoothed training loss was that low for the first time.",
    "Seconds to it": "Seconds of optimizer steps up to that step, the slowest rank's: time to quality.",
    "Devices": "GPUs that a cell takes up, or the jobs beside it; on the CPU, ranks.",
    "Device hours per epoch": "Hours of one pass over all ranges x devices.",
    "Cost per epoch": "Device hours of one pass over all ranges x the price of a device and hour.",
    "Cost per 1M tokens": "Price per hour x devices / (3600 x tokens/s) x 1,000,000, in US dollars.",
    "Cost of the speedup": "Device time for the same work, as a multiple of the baseline's: 1 / efficiency. At 1.25 "
    "times, a quarter more is paid for having the result earlier.",
    "Energy per epoch": "Energy of the GPUs for one pass over all ranges.",
    "Energy per 1M tokens": "Energy of the GPUs for 1,000,000 tokens learned from.",
    "Jobs": "What runs on the devices: one job on all of them, or independent ones of the baseline side by side.",
    "First result after": "Seconds of optimizer steps of one whole training.",
    "Results per hour": "Whole trainings per hour of all jobs together, if one follows another.",
    "Cost per result": "US dollars of the device time of one whole training.",
    "Looked at": "A property of the machine that can spoil a measurement.",
    "Finding": "ok, warning, or not checked.",
    "Found": "What was found, with its numbers.",
    "Remedy": "What to do about a warning.",
}

_OF_CLASSES = (
    "Accuracy", "Top-5 accuracy", "Best accuracy", "Best epoch", "Last accuracy", "Best checkpoint",
)  # fmt: skip
_OF_TEXTS = ("Perplexity",)
_OF_RESPONSES: tuple[str, ...] = ("Token accuracy",)


def make_blocks(results: Results) -> list[Block]:
    """Return the words of a report on classes, or of one on texts, in what the comparison counts."""
    foreign: tuple[str, ...] = _OF_TEXTS if results.quality.is_classified else _OF_CLASSES
    foreign += () if results.quality.has_responses else _OF_RESPONSES
    known = {word: meaning for word, meaning in GLOSSARY.items() if word not in foreign}
    return [
        Terms(
            {
                wording.replace_unit(word, results.unit): wording.replace_unit(known[word], results.unit)
                for word in known
            }
        )
    ]
