"""DLRover 0.6.1's side of ``bench_shards.py``. Runs in the bench environment; prints one line of JSON.

``python dlrover_shards.py inprocess|grpc RECORDS SHARD_SIZE WORKERS``: rate of tasks that were dispatched and
completed. Logging is off in both: it is upstream's main cost in process, and no part of the comparison.
"""

import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time

logging.disable(logging.CRITICAL)

from dlrover.python.common import comm
from dlrover.python.elastic_agent.master_client import GrpcMasterClient
from dlrover.python.master.local_master import LocalJobMaster
from dlrover.python.master.monitor.perf_monitor import PerfMonitor
from dlrover.python.master.shard.dataset_splitter import new_dataset_splitter
from dlrover.python.master.shard.task_manager import TaskManager
from dlrover.python.scheduler.job import LocalJobArgs

BATCH_SIZE = 10
TRAINING = 1


def in_process(records: int, shard_size: int, workers: int) -> tuple[int, float]:
    """Tasks and seconds through the TaskManager's methods."""
    manager = TaskManager(0, PerfMonitor())
    splitter = new_dataset_splitter(False, shard_size, records, 1, "bench")
    manager.new_dataset(BATCH_SIZE, records, "bench", splitter, TRAINING)
    tasks = 0
    began = time.perf_counter()
    while (task := manager.get_dataset_task("worker", tasks % workers, "bench")).task_id >= 0:
        manager.report_dataset_task(comm.TaskResult("bench", task.task_id, ""), True)
        tasks += 1
    return tasks, time.perf_counter() - began


def serve(port: int) -> None:
    """Runs LocalJobMaster until standard input is closed."""
    args = LocalJobArgs("local", "default", "bench")
    args.initilize()
    master = LocalJobMaster(port, args)  # its server stops when nobody refers to it
    master.prepare()
    print("ready", flush=True)
    sys.stdin.read()
    master.stop()


def grpc(records: int, shard_size: int, workers: int) -> tuple[int, float]:
    """Tasks and seconds through LocalJobMaster's gRPC service in a process of its own, one client a
    thread."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, __file__, "serve", str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline()
        clients = [GrpcMasterClient(f"127.0.0.1:{port}", worker, "worker") for worker in range(workers)]
        minibatches = shard_size // BATCH_SIZE
        clients[0].report_dataset_shard_params(BATCH_SIZE, 1, records, False, minibatches, "bench", TRAINING)
        counts = [0] * workers

        def work(worker: int) -> None:
            while (task := clients[worker].get_task("bench")[1]).task_id >= 0:
                clients[worker].report_task_result("bench", task.task_id, "")
                counts[worker] += 1

        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(workers)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - began
        server.kill()
    return sum(counts), seconds


def main() -> None:
    """Runs the case that the arguments name."""
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]))
        os._exit(0)
    case = {"inprocess": in_process, "grpc": grpc}[sys.argv[1]]
    tasks, seconds = case(*(int(argument) for argument in sys.argv[2:5]))
    print(json.dumps({"tasks": tasks, "seconds": seconds}), flush=True)
    os._exit(0)  # its service threads would hold the process


if __name__ == "__main__":
    main()
