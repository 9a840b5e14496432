//! Generates Envoy's types and the descriptor pool from the descriptor set in the `envoy-types` package.

#![allow(
    clippy::disallowed_methods,
    reason = "a build script reads files and the environment"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

use prost::encoding::{DecodeContext, decode_key, skip_field};
use prost::{DecodeError, Message};
use prost_types::{FileDescriptorProto, FileDescriptorSet};

/// Path prefixes of the files to generate types from. Imports come along.
const ROOTS: &[&str] = &[
    "envoy/admin/v3/",
    "envoy/config/",
    "envoy/service/cluster/",
    "envoy/service/discovery/",
    "envoy/service/endpoint/",
    "envoy/service/extension/",
    "envoy/service/listener/",
    "envoy/service/load_stats/",
    "envoy/service/route/",
    "envoy/service/runtime/",
    "envoy/service/secret/",
    "envoy/service/status/",
    "envoy/type/",
    "google/protobuf/",
    "google/rpc/",
    "udpa/",
    "xds/",
];

/// Prefixes below `envoy/extensions/`.
const EXTENSIONS: &[&str] = &[
    "access_loggers/file/",
    "access_loggers/filters/cel/",
    "access_loggers/grpc/",
    "access_loggers/open_telemetry/",
    "access_loggers/stream/",
    "bootstrap/internal_listener/",
    "clusters/aggregate/",
    "clusters/common/",
    "clusters/dns/",
    "clusters/dynamic_forward_proxy/",
    "common/dynamic_forward_proxy/",
    "common/matching/",
    "compression/",
    "early_data/",
    "filters/common/",
    "filters/http/buffer/",
    "filters/http/composite/",
    "filters/http/compressor/",
    "filters/http/cors/",
    "filters/http/dynamic_forward_proxy/",
    "filters/http/ext_authz/",
    "filters/http/ext_proc/",
    "filters/http/fault/",
    "filters/http/grpc_stats/",
    "filters/http/grpc_web/",
    "filters/http/header_to_metadata/",
    "filters/http/health_check/",
    "filters/http/jwt_authn/",
    "filters/http/local_ratelimit/",
    "filters/http/lua/",
    "filters/http/on_demand/",
    "filters/http/original_src/",
    "filters/http/ratelimit/",
    "filters/http/rbac/",
    "filters/http/router/",
    "filters/http/set_filter_state/",
    "filters/http/set_metadata/",
    "filters/http/stateful_session/",
    "filters/http/upstream_codec/",
    "filters/http/wasm/",
    "filters/listener/http_inspector/",
    "filters/listener/local_ratelimit/",
    "filters/listener/original_dst/",
    "filters/listener/original_src/",
    "filters/listener/proxy_protocol/",
    "filters/listener/tls_inspector/",
    "filters/network/connection_limit/",
    "filters/network/direct_response/",
    "filters/network/echo/",
    "filters/network/ext_authz/",
    "filters/network/http_connection_manager/",
    "filters/network/local_ratelimit/",
    "filters/network/mongo_proxy/",
    "filters/network/ratelimit/",
    "filters/network/rbac/",
    "filters/network/redis_proxy/",
    "filters/network/set_filter_state/",
    "filters/network/sni_cluster/",
    "filters/network/sni_dynamic_forward_proxy/",
    "filters/network/tcp_proxy/",
    "filters/network/wasm/",
    "formatter/",
    "http/header_formatters/preserve_case/",
    "http/original_ip_detection/",
    "http/stateful_session/",
    "internal_redirect/",
    "load_balancing_policies/",
    "matching/",
    "network/",
    "path/",
    "quic/",
    "rbac/",
    "request_id/",
    "retry/",
    "tracers/",
    "transport_sockets/http_11_proxy/",
    "transport_sockets/internal_upstream/",
    "transport_sockets/proxy_protocol/",
    "transport_sockets/quic/",
    "transport_sockets/raw_buffer/",
    "transport_sockets/tls/",
    "upstreams/",
    "wasm/",
];

/// Types that `envoy-types` lacks, below `proto/`.
const OURS: &[&str] = &[
    "istio/alpn.proto",
    "istio/nds.proto",
    "istio/stats.proto",
    "udpa/type/v1/typed_struct.proto",
];

/// A `FileDescriptorSet` whose files stay encoded: decoding would drop the options that are extensions (`validate.rules`).
#[derive(Clone, PartialEq, Message)]
struct EncodedSet {
    #[prost(bytes = "vec", repeated, tag = "1")]
    file: Vec<Vec<u8>>,
}

fn main() -> Result<(), Box<dyn Error>> {
    for path in ["build.rs", "Cargo.toml", "proto"] {
        println!("cargo:rerun-if-changed={path}");
    }

    let mut encoded =
        EncodedSet::decode(&*fs::read(envoy_types()?.join("src/generated/types.bin"))?)?;
    let ours = protox::compile(OURS, ["proto"])?.file;
    encoded.file.extend(
        ours.iter()
            .filter(|f| OURS.contains(&f.name()))
            .map(Message::encode_to_vec),
    );
    for file in &mut encoded.file {
        *file = without_source_info(file)?;
    }
    let pool = PathBuf::from(env::var("OUT_DIR")?).join("descriptors.bin");
    fs::write(pool, encoded.encode_to_vec())?;

    let mut set = FileDescriptorSet::decode(&*encoded.encode_to_vec())?;
    let keep = closure(&set.file);
    set.file.retain(|f| keep.contains(f.name()));
    prost_build::Config::new()
        .bytes(["."])
        .btree_map(["."])
        .compile_well_known_types()
        .enable_type_names()
        .type_name_domain(["."], "type.googleapis.com")
        .include_file("mod.rs")
        .compile_fds(set)?;
    Ok(())
}

/// Drops the comments and positions, which are four fifths of a file's bytes.
fn without_source_info(file: &[u8]) -> Result<Vec<u8>, DecodeError> {
    const SOURCE_CODE_INFO: u32 = 9;
    let mut rest = file;
    let mut out = Vec::new();
    while !rest.is_empty() {
        let field = rest;
        let (tag, wire_type) = decode_key(&mut rest)?;
        skip_field(wire_type, tag, &mut rest, DecodeContext::default())?;
        if tag != SOURCE_CODE_INFO {
            out.extend_from_slice(&field[..field.len() - rest.len()]);
        }
    }
    Ok(out)
}

/// Names of the root files and of all they import.
fn closure(files: &[FileDescriptorProto]) -> BTreeSet<String> {
    let by_name: BTreeMap<_, _> = files.iter().map(|f| (f.name(), f)).collect();
    let mut todo: Vec<&str> = by_name
        .keys()
        .copied()
        .filter(|name| is_root(name))
        .collect();
    let mut keep = BTreeSet::new();
    while let Some(name) = todo.pop() {
        if keep.insert(name.to_owned()) {
            todo.extend(by_name[name].dependency.iter().map(String::as_str));
        }
    }
    keep
}

fn is_root(file: &str) -> bool {
    let starts = |prefixes: &[&str], name: &str| prefixes.iter().any(|p| name.starts_with(p));
    OURS.contains(&file)
        || starts(ROOTS, file)
        || file
            .strip_prefix("envoy/extensions/")
            .is_some_and(|name| starts(EXTENSIONS, name))
}

/// Where cargo unpacked the `envoy-types` package.
fn envoy_types() -> Result<PathBuf, Box<dyn Error>> {
    let metadata = |mode: &[&str]| {
        Command::new(env::var("CARGO")?)
            .args(["metadata", "--format-version=1"])
            .args(mode)
            .output()
            .map_err(Box::<dyn Error>::from)
    };
    let mut output = metadata(&["--offline"])?;
    if !output.status.success() {
        output = metadata(&[])?;
    }
    let json: serde_json::Value = serde_json::from_slice(&output.stdout)
        .map_err(|_| String::from_utf8_lossy(&output.stderr))?;
    let manifest = json["packages"]
        .as_array()
        .and_then(|packages| packages.iter().find(|p| p["name"] == "envoy-types"))
        .and_then(|package| package["manifest_path"].as_str())
        .ok_or("cargo metadata does not list envoy-types")?;
    Ok(PathBuf::from(manifest).with_file_name(""))
}
