//! The gRPC services: which path is which variant of the protocol for which type.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response};
use tonic::Status;
use tonic::body::Body;

use crate::configuration::{Configuration, Peer};
use crate::inbound::Inbound;
use crate::outbound;
use crate::server::Shared;
use crate::stream::{self, Opening};
use crate::type_url::TypeUrl;
use crate::{delta, sotw};

/// The discovery services as one `tower::Service`. Clones serve the same streams.
pub struct Discovery<C> {
    shared: Arc<Shared<C>>,
}

impl<C> Clone for Discovery<C> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
        }
    }
}

impl<C> std::fmt::Debug for Discovery<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Discovery")
    }
}

/// Where a connection comes from; left with its requests by the transport.
#[derive(Clone, Copy, Debug)]
pub struct PeerAddress(pub std::net::SocketAddr);

/// What a path stands for: incremental or not, and the one type that it carries.
fn route(path: &str) -> Option<(bool, Option<TypeUrl>)> {
    let (service, method) = path.strip_prefix("/envoy.service.")?.split_once('/')?;
    let (what, only) = match service {
        "discovery.v3.AggregatedDiscoveryService" => ("AggregatedResources", None),
        "cluster.v3.ClusterDiscoveryService" => ("Clusters", Some(TypeUrl::Cluster)),
        "endpoint.v3.EndpointDiscoveryService" => ("Endpoints", Some(TypeUrl::Endpoints)),
        "listener.v3.ListenerDiscoveryService" => ("Listeners", Some(TypeUrl::Listener)),
        "route.v3.RouteDiscoveryService" => ("Routes", Some(TypeUrl::Route)),
        "secret.v3.SecretDiscoveryService" => ("Secrets", Some(TypeUrl::Secret)),
        "extension.v3.ExtensionConfigDiscoveryService" => {
            ("ExtensionConfigs", Some(TypeUrl::ExtensionConfig))
        }
        _ => return None,
    };
    match (method.strip_prefix("Stream"), method.strip_prefix("Delta")) {
        (Some(rest), _) if rest == what => Some((false, only)),
        (_, Some(rest)) if rest == what => Some((true, only)),
        _ => None,
    }
}

/// Why a request is no stream of ours.
fn refusal<B>(request: &Request<B>) -> Option<Status> {
    let header = |name: &str| request.headers().get(name).and_then(|v| v.to_str().ok());
    if !header("content-type").is_some_and(|t| t.starts_with("application/grpc")) {
        return Some(Status::invalid_argument("not a gRPC request"));
    }
    if header("grpc-encoding").is_some_and(|e| e != "identity") {
        return Some(Status::unimplemented(
            "compressed requests are not supported",
        ));
    }
    None
}

impl<C: Configuration> Discovery<C> {
    pub(crate) fn new(shared: Arc<Shared<C>>) -> Self {
        Self { shared }
    }

    fn open<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: std::fmt::Display,
    {
        let Some((delta, only)) = route(request.uri().path()) else {
            return Status::unimplemented(format!("no method {}", request.uri().path()))
                .into_http();
        };
        if let Some(status) = refusal(&request) {
            return status.into_http();
        }
        let (parts, body) = request.into_parts();
        let peer = Peer {
            address: parts.extensions.get::<PeerAddress>().map(|p| p.0),
            headers: parts.headers,
            extensions: parts.extensions,
            incremental: delta && only.is_none(),
        };
        let limits = &self.shared.limits;
        // Besides the names a request has a handful of fields; a delta request may both add and remove names.
        let inbound = Inbound::new(
            body,
            limits.max_receive_bytes,
            limits.max_names.saturating_mul(3).saturating_add(64),
        );
        let (outbound, body) = outbound::channel(self.shared.turns.clone());
        let opening = Opening {
            inbound,
            outbound,
            peer,
            only,
            delta,
        };
        let shared = self.shared.clone();
        if delta {
            tokio::spawn(stream::run::<C, delta::Session>(shared, opening));
        } else {
            tokio::spawn(stream::run::<C, sotw::Session>(shared, opening));
        }
        let mut response = Response::new(Body::new(body));
        response
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        response
    }
}

impl<C, B> tower::Service<Request<B>> for Discovery<C>
where
    C: Configuration,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: std::fmt::Display,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        ready(Ok(self.open(request)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_a_variant_and_a_type() {
        let aggregated = "/envoy.service.discovery.v3.AggregatedDiscoveryService";
        assert_eq!(
            route(&format!("{aggregated}/StreamAggregatedResources")),
            Some((false, None))
        );
        assert_eq!(
            route(&format!("{aggregated}/DeltaAggregatedResources")),
            Some((true, None))
        );
        let clusters = "/envoy.service.cluster.v3.ClusterDiscoveryService";
        assert_eq!(
            route(&format!("{clusters}/StreamClusters")),
            Some((false, Some(TypeUrl::Cluster)))
        );
        assert_eq!(
            route(&format!("{clusters}/DeltaClusters")),
            Some((true, Some(TypeUrl::Cluster)))
        );
        for none in [
            "",
            "/",
            "/x/y",
            &format!("{clusters}/FetchClusters"),
            &format!("{clusters}/DeltaRoutes"),
        ] {
            assert_eq!(route(none), None, "{none}");
        }
    }
}
