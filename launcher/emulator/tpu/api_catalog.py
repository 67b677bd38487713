"""What there is to choose from: accelerator types, runtime versions, locations."""

from __future__ import annotations

from google.cloud.location import locations_pb2

from launcher.accelerators import Accelerator, all_types, lookup
from launcher.emulator.rpc import Method
from launcher.emulator.tpu.checks import runtime_versions
from launcher.emulator.tpu.errors import bad_field, not_found
from launcher.emulator.tpu.fleet import Fleet
from launcher.emulator.tpu.names import Place, page, split, zones
from launcher.emulator.tpu.node import accelerator_kind
from launcher.emulator.tpu.wire import v2


def list_accelerator_types(
    _: Fleet, request: v2.ListAcceleratorTypesRequest
) -> v2.ListAcceleratorTypesResponse:
    place = Place.parse(request.parent)
    offered = [t for t in map(lookup, all_types()) if place.zone in t.zones]
    types = [_accelerator_type(place, accelerator) for accelerator in offered]
    found, token = page(types, lambda t: t.name, request.page_size, request.page_token)
    return v2.ListAcceleratorTypesResponse(accelerator_types=found, next_page_token=token)


def get_accelerator_type(_: Fleet, request: v2.GetAcceleratorTypeRequest) -> v2.AcceleratorType:
    place, name = split(request.name, "acceleratorTypes")
    if name not in all_types() or place.zone not in lookup(name).zones:
        raise not_found(request.name)
    return _accelerator_type(place, lookup(name))


def _accelerator_type(place: Place, accelerator: Accelerator) -> v2.AcceleratorType:
    config = v2.AcceleratorConfig(
        type_=accelerator_kind(accelerator.generation), topology=accelerator.topology
    )
    return v2.AcceleratorType(
        name=place.resource("acceleratorTypes", accelerator.accelerator_type),
        type_=accelerator.accelerator_type,
        accelerator_configs=[config],
    )


def list_runtime_versions(
    _: Fleet, request: v2.ListRuntimeVersionsRequest
) -> v2.ListRuntimeVersionsResponse:
    place = Place.parse(request.parent)
    versions = [_runtime_version(place, version) for version in runtime_versions()]
    found, token = page(versions, lambda v: v.name, request.page_size, request.page_token)
    return v2.ListRuntimeVersionsResponse(runtime_versions=found, next_page_token=token)


def get_runtime_version(_: Fleet, request: v2.GetRuntimeVersionRequest) -> v2.RuntimeVersion:
    place, version = split(request.name, "runtimeVersions")
    if version not in runtime_versions():
        raise not_found(request.name)
    return _runtime_version(place, version)


def _runtime_version(place: Place, version: str) -> v2.RuntimeVersion:
    return v2.RuntimeVersion(name=place.resource("runtimeVersions", version), version=version)


def list_locations(
    _: Fleet, request: locations_pb2.ListLocationsRequest
) -> locations_pb2.ListLocationsResponse:
    kind, _, project = request.name.partition("/")
    if kind != "projects" or not project or "/" in project:
        raise bad_field("name", request.name)
    places = [_location(Place(project, zone)) for zone in zones()]
    found, token = page(places, lambda p: p.name, request.page_size, request.page_token)
    return locations_pb2.ListLocationsResponse(locations=found, next_page_token=token)


def get_location(_: Fleet, request: locations_pb2.GetLocationRequest) -> locations_pb2.Location:
    return _location(Place.parse(request.name))


def _location(place: Place) -> locations_pb2.Location:
    return locations_pb2.Location(name=place.parent, location_id=place.zone)


TPU_METHODS = {
    "ListAcceleratorTypes": Method(list_accelerator_types, v2.ListAcceleratorTypesRequest),
    "GetAcceleratorType": Method(get_accelerator_type, v2.GetAcceleratorTypeRequest),
    "ListRuntimeVersions": Method(list_runtime_versions, v2.ListRuntimeVersionsRequest),
    "GetRuntimeVersion": Method(get_runtime_version, v2.GetRuntimeVersionRequest),
}
LOCATION_METHODS = {
    "ListLocations": Method(list_locations, locations_pb2.ListLocationsRequest),
    "GetLocation": Method(get_location, locations_pb2.GetLocationRequest),
}
