"""How many replicas of a server Ray Serve runs: by the queue that the server reports."""

# Names under which a replica reports to Ray Serve.
QUEUE, RUNNING = "sconce_queue", "sconce_running"

_QUEUES = ("te_queue_size", "vllm:num_requests_waiting")
_RUNNING = ("sconce_requests_running",)


def load_of(metrics):
    """The waiting and running requests in the text of `/metrics`."""
    return {QUEUE: _sum(metrics, _QUEUES), RUNNING: _sum(metrics, _RUNNING)}


class QueuePolicy:
    """Replicas for `target_queue` waiting requests each, and for the requests that are in progress.

    The queue alone would remove replicas as soon as it is empty, although all of them work; so there
    are also as many as Ray's `target_ongoing_requests` asks for.
    """

    def __init__(self, target_queue=8):
        self.target_queue = target_queue

    def __call__(self, context):
        reported = (context.aggregated_metrics or {}).get(QUEUE) or {}
        by_queue = sum(reported.values()) / self.target_queue
        by_requests = context.total_num_requests / context.config.get_target_ongoing_requests()
        return max(by_queue, by_requests), {}


def _sum(metrics, names):
    total = 0.0
    for line in metrics.splitlines():
        name, _, value = line.rpartition(" ")
        if name.partition("{")[0] in names:
            total += float(value)
    return total
