"""`python -m tests.phantom.look`: what torch and NVML see of the cards, as JSON."""

import json
import sys

import torch

from tasks.machine.gpu_facts import open_gpus, read_gpu, read_link


def main() -> None:
    """Write what is seen to standard output."""
    cards = [torch.cuda.get_device_properties(device) for device in range(torch.cuda.device_count())]
    with open_gpus() as opened:
        board = [read_gpu(handle, index) for index, handle in enumerate(opened.handles)]
        links = [read_link(opened.handles[0], other, indices=(0, 1)).kind for other in opened.handles[1:2]]
    found = {
        "names": [card.name for card in cards],
        "capabilities": [[card.major, card.minor] for card in cards],
        "memory_bytes": [card.total_memory for card in cards],
        "uuids": [str(card.uuid) for card in cards],
        "has_bf16": torch.cuda.is_bf16_supported(including_emulation=False),
        "board_names": [card.name for card in board],
        "board_memory_mib": [round((card.memory_total_gib or 0) * 1024) for card in board],
        "links": links,
        "labels": torch.tensor([5, -100]).cuda().tolist(),
        "largest_allocation": _find_largest_allocation(),
    }
    json.dump(found, sys.stdout)


def _find_largest_allocation() -> list[bool]:
    """Return whether half of the memory, all of it, and after its end half of it again, can be had."""
    total = torch.cuda.get_device_properties(0).total_memory
    return [_can_have(total // 2), _can_have(total), _can_have(total // 2)]


def _can_have(num_bytes: int) -> bool:
    try:
        torch.empty(num_bytes, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        return False
    finally:
        torch.cuda.empty_cache()
    return True


if __name__ == "__main__":
    main()
