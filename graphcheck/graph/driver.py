"""Reads a captured graph through the CUDA driver (package cuda-bindings)."""

from __future__ import annotations

import ctypes
from typing import Any

from graphcheck.errors import EnvironmentUnable
from graphcheck.graph.nodes import HOST, KERNEL, MEM_ALLOC, MEM_FREE, MEMCPY, MEMSET, Argument, Copy, Node


def read_nodes(graph: int) -> list[Node]:
    """The nodes of a graph in creation order.

    Args:
        graph: the raw ``cudaGraph_t``, for instance of ``torch.cuda.CUDAGraph.raw_cuda_graph()``; must not be destroyed.

    Raises:
        EnvironmentUnable: cuda-bindings is not installed, or the driver refuses a query.
    """
    driver = _driver()
    handle = driver.CUgraph(graph)
    (count,) = _ok(driver.cuGraphGetNodes(handle), "cuGraphGetNodes")[-1:]
    if not count:
        return []
    handles = _ok(driver.cuGraphGetNodes(handle, count), "cuGraphGetNodes")[0]
    places = {int(node): index for index, node in enumerate(handles)}
    after = _dependencies(driver, handle, places)
    return [_node(driver, index, node, tuple(sorted(after.get(index, ())))) for index, node in enumerate(handles)]


def capturing_graph(stream: int) -> int:
    """The graph that a capturing stream records into, as a number; 0 if it captures nothing.

    A library that captures by itself can hand it to `graphcheck.Recorded`, if it keeps the graph.

    Args:
        stream: the raw ``cudaStream_t``.
    """
    driver = _driver()
    _, _, graph, *_ = _ok(driver.cuStreamGetCaptureInfo(driver.CUstream(stream)), "cuStreamGetCaptureInfo")
    return int(graph) if graph is not None else 0


def allocation(address: int) -> tuple[int, int] | None:
    """Start and size of the device allocation that holds ``address``, as the driver knows it; None if there is none."""
    driver = _driver()
    pointer = driver.CUdeviceptr(address)
    attributes = driver.CUpointer_attribute
    status, kind = driver.cuPointerGetAttribute(attributes.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer)
    if int(status) != 0 or int(kind) != int(driver.CUmemorytype.CU_MEMORYTYPE_DEVICE):
        return None
    status, start = driver.cuPointerGetAttribute(attributes.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, pointer)
    again, size = driver.cuPointerGetAttribute(attributes.CU_POINTER_ATTRIBUTE_RANGE_SIZE, pointer)
    return (int(start), int(size)) if int(status) == 0 and int(again) == 0 else None


def _driver() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise EnvironmentUnable(
            "graph inspection needs the package cuda-bindings: pip install 'torch-graphcheck[cuda]'"
        ) from error
    return driver


def _ok(answer: tuple[Any, ...], call: str) -> tuple[Any, ...]:
    """The results of a driver call, without its status."""
    status, *results = answer
    if int(status) != 0:
        raise EnvironmentUnable(f"the CUDA driver answered {status!r} to {call}; graph inspection is not possible here")
    return tuple(results)


def _dependencies(driver: Any, handle: Any, places: dict[int, int]) -> dict[int, set[int]]:
    """For each node, the nodes it depends on."""
    answer = _ok(driver.cuGraphGetEdges(handle), "cuGraphGetEdges")
    count = answer[-1]
    if not count:
        return {}
    answer = _ok(driver.cuGraphGetEdges(handle, count), "cuGraphGetEdges")
    after: dict[int, set[int]] = {}
    for first, second in zip(answer[0], answer[1], strict=True):
        after.setdefault(places[int(second)], set()).add(places[int(first)])
    return after


def _node(driver: Any, index: int, handle: Any, after: tuple[int, ...]) -> Node:
    (kind,) = _ok(driver.cuGraphNodeGetType(handle), "cuGraphNodeGetType")
    types = driver.CUgraphNodeType
    if kind == types.CU_GRAPH_NODE_TYPE_KERNEL:
        return _kernel(driver, index, handle, after)
    if kind == types.CU_GRAPH_NODE_TYPE_MEMCPY:
        return Node(index, MEMCPY, copy=_memcpy(driver, handle), after=after)
    if kind == types.CU_GRAPH_NODE_TYPE_MEMSET:
        (params,) = _ok(driver.cuGraphMemsetNodeGetParams(handle), "cuGraphMemsetNodeGetParams")
        nbytes = int(params.width) * max(1, int(params.height)) * int(params.elementSize)
        return Node(index, MEMSET, copy=Copy(0, int(params.dst), False, False, nbytes), after=after)
    if kind == types.CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        (params,) = _ok(driver.cuGraphMemAllocNodeGetParams(handle), "cuGraphMemAllocNodeGetParams")
        return Node(index, MEM_ALLOC, address=int(params.dptr), nbytes=int(params.bytesize), after=after)
    if kind == types.CU_GRAPH_NODE_TYPE_MEM_FREE:
        (address,) = _ok(driver.cuGraphMemFreeNodeGetParams(handle), "cuGraphMemFreeNodeGetParams")
        return Node(index, MEM_FREE, address=int(address), after=after)
    if kind == types.CU_GRAPH_NODE_TYPE_HOST:
        return Node(index, HOST, after=after)
    return Node(index, str(kind).rsplit("TYPE_", 1)[-1].lower(), after=after)


def _kernel(driver: Any, index: int, handle: Any, after: tuple[int, ...]) -> Node:
    (params,) = _ok(driver.cuGraphKernelNodeGetParams(handle), "cuGraphKernelNodeGetParams")
    function = params.func
    kernel = params.kern
    # A kernel launched through a library handle has no function of its own; its kernel handle answers the same queries.
    if int(function):
        (name,) = _ok(driver.cuFuncGetName(function), "cuFuncGetName")
        query = driver.cuFuncGetParamInfo
        asked = function
    else:
        (name,) = _ok(driver.cuKernelGetName(kernel), "cuKernelGetName")
        query = driver.cuKernelGetParamInfo
        asked = kernel
    return Node(
        index,
        KERNEL,
        name=name.decode() if isinstance(name, bytes) else str(name),
        grid=(int(params.gridDimX), int(params.gridDimY), int(params.gridDimZ)),
        block=(int(params.blockDimX), int(params.blockDimY), int(params.blockDimZ)),
        shared=int(params.sharedMemBytes),
        arguments=_arguments(query, asked, int(params.kernelParams)),
        after=after,
    )


def _arguments(query: Any, asked: Any, table: int) -> tuple[Argument, ...]:
    """The parameter bytes, as many as the driver knows; the driver answers an error past the last one."""
    if not table:
        return ()
    found: list[Argument] = []
    while True:
        status, *answer = query(asked, len(found))
        if int(status) != 0:
            return tuple(found)
        offset, size = int(answer[0]), int(answer[1])
        address = ctypes.c_void_p.from_address(table + len(found) * ctypes.sizeof(ctypes.c_void_p)).value
        data = ctypes.string_at(address, size) if address else b""
        found.append(Argument(len(found), offset, data))


def _memcpy(driver: Any, handle: Any) -> Copy:
    (params,) = _ok(driver.cuGraphMemcpyNodeGetParams(handle), "cuGraphMemcpyNodeGetParams")
    host = driver.CUmemorytype.CU_MEMORYTYPE_HOST
    source_host = params.srcMemoryType == host or _is_host(driver, int(params.srcDevice))
    destination_host = params.dstMemoryType == host or _is_host(driver, int(params.dstDevice))
    return Copy(
        source=int(params.srcHost) if params.srcMemoryType == host else int(params.srcDevice),
        destination=int(params.dstHost) if params.dstMemoryType == host else int(params.dstDevice),
        source_host=source_host,
        destination_host=destination_host,
        nbytes=int(params.WidthInBytes) * max(1, int(params.Height)) * max(1, int(params.Depth)),
    )


def _is_host(driver: Any, address: int) -> bool:
    """Whether a unified address is host memory; unregistered host memory is unknown to the driver, so it counts."""
    if not address:
        return False
    attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    status, value = driver.cuPointerGetAttribute(attribute, driver.CUdeviceptr(address))
    return int(status) != 0 or int(value) == int(driver.CUmemorytype.CU_MEMORYTYPE_HOST)
