"""What must hold for the manifests without a server: schemas, references between objects, times."""

import os
import re

import kubernetes_validate

# The oldest and the newest version of Kubernetes whose schemas are checked, or with
# SCONCE_K8S_VERSIONS=all those between too.
VERSIONS = ["1.27", "1.37"]
if os.environ.get("SCONCE_K8S_VERSIONS") == "all":
    VERSIONS = [f"1.{minor}" for minor in range(27, 38)]

# Seconds between the end of the last request and the exit of the process, at least.
SLACK = 15

# kubernetes-validate has no schemas of custom resources: the fields that we use, `*` for any key.
CUSTOM = {
    "ServiceMonitor": {
        "selector": {"matchLabels": {"*": str}},
        "endpoints": [{"port": str, "path": str, "interval": str}],
    },
    "ScaledObject": {
        "scaleTargetRef": {"name": str},
        "minReplicaCount": int,
        "maxReplicaCount": int,
        "pollingInterval": int,
        "fallback": {"failureThreshold": int, "replicas": int},
        "advanced": {
            "horizontalPodAutoscalerConfig": {"behavior": {"scaleDown": {"stabilizationWindowSeconds": int}}}
        },
        "triggers": [{"type": str, "metadata": {"serverAddress": str, "query": str, "threshold": str}}],
    },
}


class Wrong(Exception):
    """A mistake in a manifest."""


def require(condition, what):
    if not condition:
        raise Wrong(what)


def name_of(document):
    return f"{document['kind']} {document['metadata']['name']}"


def fits(value, shape, where):
    """Whether a custom resource has the fields of a shape, no others, and of these types."""
    if isinstance(shape, dict):
        require(isinstance(value, dict), f"{where} is not an object")
        if "*" in shape:
            shape = dict.fromkeys(value, shape["*"])
        require(set(value) == set(shape), f"{where} has {sorted(value)}, not {sorted(shape)}")
        for key, inner in shape.items():
            fits(value[key], inner, f"{where}.{key}")
    elif isinstance(shape, list):
        require(isinstance(value, list) and value, f"{where} is not a list, or empty")
        for i, item in enumerate(value):
            fits(item, shape[0], f"{where}[{i}]")
    else:
        require(isinstance(value, shape), f"{where} is not of type {shape.__name__}")


def schemas(documents):
    for document in documents:
        if document["kind"] in CUSTOM:
            fits(document["spec"], CUSTOM[document["kind"]], name_of(document))
            continue
        for version in VERSIONS:
            try:
                kubernetes_validate.validate(document, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                path = ".".join(str(part) for part in error.path)
                raise Wrong(f"{name_of(document)}, Kubernetes {version}: {path}: {error.message}") from None


def of_kind(documents, kind):
    return [document for document in documents if document["kind"] == kind]


def container_of(document):
    (container,) = document["spec"]["template"]["spec"]["containers"]
    return container


def command_of(container):
    """The arguments of `sconce` in a container, its command first. `sconce serve` is the image's entry point."""
    program, *command = container.get("command", ["sconce", "serve"])
    require(program == "sconce", f"{program}: signals must reach sconce")
    return [*command, *container.get("args", [])]


def option(words, name, default):
    """The value of `--name=value`."""
    values = [word.partition("=")[2] for word in words if word.startswith(f"--{name}=")]
    return values[-1] if values else default


def metric_names(documents):
    """The metrics that the queries of the autoscaler read."""
    triggers = [trigger for scaled in of_kind(documents, "ScaledObject") for trigger in scaled["spec"]["triggers"]]
    names = {name for t in triggers for name in re.findall(r"([a-zA-Z_:][\w:]*)\{", t["metadata"]["query"])}
    require(len(names) == len(triggers), "a query without a metric")
    return names


def pods(documents):
    for document in of_kind(documents, "Deployment") + of_kind(documents, "Job"):
        spec, name = document["spec"]["template"]["spec"], name_of(document)
        container = container_of(document)
        context, own = spec["securityContext"], container["securityContext"]
        require(context["runAsNonRoot"] and context["runAsUser"] > 0, f"{name} may run as root")
        require(own["readOnlyRootFilesystem"] and not own["allowPrivilegeEscalation"], f"{name}: rights")
        require(own["capabilities"] == {"drop": ["ALL"]}, f"{name}: capabilities")
        volumes = {volume["name"] for volume in spec["volumes"]}
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        require(set(mounts) == volumes, f"{name}: volumes and mounts differ")
        for variable in container["env"]:
            if variable["name"] in ("SCONCE_CACHE", "HF_HOME", "CUDA_CACHE_PATH"):
                inside = any(variable["value"].startswith(path) for path in mounts.values())
                require(inside, f"{name}: {variable['name']} is on the read-only root")


def deployments(documents):
    claims = {claim["metadata"]["name"] for claim in of_kind(documents, "PersistentVolumeClaim")}
    services = {service["metadata"]["name"]: service["spec"] for service in of_kind(documents, "Service")}
    policies = [policy["spec"]["podSelector"]["matchLabels"] for policy in of_kind(documents, "NetworkPolicy")]
    for document in of_kind(documents, "Deployment"):
        name, labels = document["metadata"]["name"], document["spec"]["template"]["metadata"]["labels"]
        spec, container = document["spec"]["template"]["spec"], container_of(document)
        require(document["spec"]["selector"]["matchLabels"] == labels, f"{name}: selector")
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        variables = {variable["name"]: variable.get("value") for variable in container["env"]}
        require(ports == {"http": int(variables["PORT"])}, f"{name}: the server listens at {variables['PORT']}")
        service = services[name]
        require(service["selector"] == labels, f"{name}: the Service selects other pods")
        require([port["targetPort"] for port in service["ports"]] == ["http"], f"{name}: the Service's port")
        require(labels in policies, f"{name}: no NetworkPolicy")
        used = {v["persistentVolumeClaim"]["claimName"] for v in spec["volumes"] if "persistentVolumeClaim" in v}
        require(used and used <= claims, f"{name}: no claim {used - claims}")
        # The pod is killed only after the Service forgot it and the longest request has ended.
        (sleep, seconds) = container["lifecycle"]["preStop"]["exec"]["command"]
        longest = int(option(command_of(container), "request-timeout", "600"))
        least = int(seconds) + longest + SLACK
        require(sleep == "sleep" and 0 < longest <= 600, f"{name}: the server drains for at most 600 s")
        grace = spec["terminationGracePeriodSeconds"]
        require(grace >= least, f"{name}: a grace period of {grace} s; {least} s are needed")
        requests = container["resources"]["requests"]
        limits = container["resources"]["limits"]
        require(requests["memory"] == limits["memory"] and "cpu" in limits, f"{name}: resources")
        gpu = "--device=cuda" in container["args"]
        require(gpu == (limits.get("nvidia.com/gpu") == 1), f"{name}: its device and its resources")
    for scaled in of_kind(documents, "ScaledObject"):
        require(scaled["spec"]["scaleTargetRef"]["name"] in services, f"{name_of(scaled)}: no such Deployment")
        for trigger in scaled["spec"]["triggers"]:
            service = f'service="{scaled["spec"]["scaleTargetRef"]["name"]}"'
            require(service in trigger["metadata"]["query"], f"{name_of(scaled)}: a query of another Service")
    for monitor in of_kind(documents, "ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"]
        require(any(wanted == s["metadata"]["labels"] for s in of_kind(documents, "Service")), name_of(monitor))
        require([e["port"] for e in monitor["spec"]["endpoints"]] == ["http"], f"{name_of(monitor)}: port")


def check(documents):
    schemas(documents)
    pods(documents)
    deployments(documents)
    metric_names(documents)
