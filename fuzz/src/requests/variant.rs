//! Both variants of the protocol, as clients see them.

use std::collections::{BTreeMap, BTreeSet};

use pilotfish_protos::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use pilotfish_protos::google::rpc::Status;
use pilotfish_xds::TypeUrl::{self, VirtualHost};
use pilotfish_xds::{Protocol, Resource, Response, Version, delta, sotw};
use prost::Message;

use super::TYPES;
use crate::dice::Dice;

/// Names of resources.
pub(super) const NAMES: [&str; 7] = [
    "a",
    "b",
    "c",
    "a/x",
    "a/y",
    "b/x",
    "outbound|80||web.shop.svc.cluster.local",
];
/// What clients send in place of names.
const NO_NAMES: [&str; 2] = ["*", ""];

/// A response as a client sees it: what it carries, and what it withdraws.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) nonce: String,
    pub(super) resources: BTreeMap<String, String>,
    pub(super) removed: BTreeSet<String>,
}

/// One variant of the protocol.
pub(super) trait Variant {
    type Session: Protocol<Request: std::fmt::Debug>;
    /// A response, which must be well formed: known nonce and type, no name twice.
    fn decode(t: &TypeUrl, response: &Response) -> Seen;
    /// Anything that can be a request, most often nearly a good one.
    fn wild(dice: &mut Dice<'_>, nonces: &[String]) -> <Self::Session as Protocol>::Request;
    /// A request of a client that keeps to the rules.
    fn subscribe(
        side: &mut Side,
        t: &TypeUrl,
        name: &str,
        add: bool,
    ) -> <Self::Session as Protocol>::Request;
    /// Takes a response and answers it.
    fn take(
        side: &mut Side,
        t: &TypeUrl,
        seen: Seen,
        accept: bool,
    ) -> <Self::Session as Protocol>::Request;
    /// Whether a name that is gone is told for this type.
    fn tells_removals(t: &TypeUrl) -> bool;
}

fn names(dice: &mut Dice<'_>) -> Vec<String> {
    let count = dice.roll(5);
    let one = |dice: &mut Dice<'_>| match dice.roll(NAMES.len() + NO_NAMES.len()) {
        n if n < NAMES.len() => NAMES[n],
        n => NO_NAMES[n - NAMES.len()],
    };
    (0..count).map(|_| one(dice).to_owned()).collect()
}

fn url(dice: &mut Dice<'_>) -> String {
    match dice.roll(TYPES.len() + 3) {
        7 => String::new(),
        8 => "type.googleapis.com/nobody.knows.It".to_owned(),
        9 => String::from_utf8_lossy(dice.take(8)).into_owned(),
        known => TYPES[known].as_str().to_owned(),
    }
}

fn nonce(dice: &mut Dice<'_>, nonces: &[String]) -> String {
    let newest = nonces.last().cloned().unwrap_or_default();
    match dice.roll(6) {
        0 => String::new(),
        1 => "00000001.99".to_owned(),
        2 if !nonces.is_empty() => nonces[dice.roll(nonces.len())].clone(),
        3 => String::from_utf8_lossy(dice.take(6)).into_owned(),
        _ => newest,
    }
}

fn error(dice: &mut Dice<'_>) -> Option<Status> {
    (dice.roll(4) == 3).then(|| Status {
        code: 13,
        message: "no".repeat(dice.roll(3000)),
        ..Status::default()
    })
}

pub(super) struct Delta;

impl Variant for Delta {
    type Session = delta::Session;

    fn decode(t: &TypeUrl, response: &Response) -> Seen {
        let message =
            DeltaDiscoveryResponse::decode(response.frames.message()).expect("a response");
        assert_eq!(message.type_url, t.as_str());
        assert_eq!(message.resources.len(), response.resources);
        assert_eq!(message.removed_resources.len(), response.removed);
        let mut resources = BTreeMap::new();
        for r in message.resources {
            let any = r.resource.expect("a body");
            assert_eq!(any.type_url, t.as_str());
            assert!(
                any.value.starts_with(format!("{}=", r.name).as_bytes()),
                "another's body"
            );
            // The version of endpoints tells of their cluster, too; the end of a cluster's, which time it was sent.
            let content = Version::of(&any.encode_to_vec()).to_string();
            match t {
                TypeUrl::Endpoints => {}
                TypeUrl::Cluster => assert_eq!(r.version[..12], content[..12]),
                _ => assert_eq!(r.version, content),
            }
            assert!(
                resources.insert(r.name.clone(), content).is_none(),
                "{} twice",
                r.name
            );
        }
        let removed: BTreeSet<String> = message.removed_resources.iter().cloned().collect();
        assert_eq!(
            removed.len(),
            message.removed_resources.len(),
            "removed twice"
        );
        assert!(
            resources.keys().all(|n| !removed.contains(n)),
            "there and gone"
        );
        Seen {
            nonce: message.nonce,
            resources,
            removed,
        }
    }

    fn wild(dice: &mut Dice<'_>, nonces: &[String]) -> DeltaDiscoveryRequest {
        if dice.roll(8) == 7 {
            return DeltaDiscoveryRequest::decode(dice.take(40)).unwrap_or_default();
        }
        DeltaDiscoveryRequest {
            type_url: url(dice),
            resource_names_subscribe: names(dice),
            resource_names_unsubscribe: names(dice),
            initial_resource_versions: names(dice)
                .into_iter()
                .map(|n| (n, "0123456789abcdef".to_owned()))
                .collect(),
            response_nonce: nonce(dice, nonces),
            error_detail: error(dice),
            ..DeltaDiscoveryRequest::default()
        }
    }

    fn subscribe(side: &mut Side, t: &TypeUrl, name: &str, add: bool) -> DeltaDiscoveryRequest {
        let first = !std::mem::replace(&mut side.started, true);
        let mut request = DeltaDiscoveryRequest {
            type_url: t.as_str().into(),
            ..DeltaDiscoveryRequest::default()
        };
        if add {
            request.resource_names_subscribe = vec![name.into()];
        } else {
            request.resource_names_unsubscribe = vec![name.into()];
            // A first request without subscriptions asks for everything, unless it says otherwise.
            side.wildcard |= first && t.is_whole();
        }
        match (name, add) {
            ("*", add) => side.wildcard = add,
            (name, true) => drop(side.named.insert(name.into())),
            (name, false) => drop(side.named.remove(name)),
        }
        side.forget(t);
        request
    }

    fn take(side: &mut Side, t: &TypeUrl, seen: Seen, accept: bool) -> DeltaDiscoveryRequest {
        if accept {
            for (name, version) in seen.resources {
                if side.wants(t, &name) {
                    side.held.insert(name, version);
                }
            }
            for name in seen.removed {
                side.held.remove(&name);
            }
        }
        DeltaDiscoveryRequest {
            type_url: t.as_str().into(),
            response_nonce: seen.nonce,
            error_detail: (!accept).then(Status::default),
            ..DeltaDiscoveryRequest::default()
        }
    }

    fn tells_removals(_: &TypeUrl) -> bool {
        true
    }
}

pub(super) struct Sotw;

impl Sotw {
    fn request(side: &Side, t: &TypeUrl) -> DiscoveryRequest {
        let mut names: Vec<String> = side.named.iter().cloned().collect();
        if side.wildcard && side.ever_named {
            names.push("*".to_owned());
        }
        DiscoveryRequest {
            type_url: t.as_str().into(),
            response_nonce: side.nonce.clone(),
            resource_names: names,
            ..DiscoveryRequest::default()
        }
    }
}

impl Variant for Sotw {
    type Session = sotw::Session;

    fn decode(t: &TypeUrl, response: &Response) -> Seen {
        let message = DiscoveryResponse::decode(response.frames.message()).expect("a response");
        assert_eq!(message.type_url, t.as_str());
        assert_eq!(message.resources.len(), response.resources);
        assert!(!message.version_info.is_empty());
        let mut resources = BTreeMap::new();
        for any in message.resources {
            assert_eq!(any.type_url, t.as_str());
            let body = String::from_utf8(any.value.to_vec()).expect("our own body");
            let (name, _) = body.rsplit_once('=').expect("our own body");
            let version =
                Resource::wrap(t.as_str(), name.into(), body.as_bytes(), [].into()).version;
            assert!(
                resources
                    .insert(name.to_owned(), version.to_string())
                    .is_none(),
                "{name} twice"
            );
        }
        Seen {
            nonce: message.nonce,
            resources,
            removed: BTreeSet::new(),
        }
    }

    fn wild(dice: &mut Dice<'_>, nonces: &[String]) -> DiscoveryRequest {
        if dice.roll(8) == 7 {
            return DiscoveryRequest::decode(dice.take(40)).unwrap_or_default();
        }
        DiscoveryRequest {
            type_url: url(dice),
            resource_names: names(dice),
            version_info: String::from_utf8_lossy(dice.take(4)).into_owned(),
            response_nonce: nonce(dice, nonces),
            error_detail: error(dice),
            ..DiscoveryRequest::default()
        }
    }

    fn subscribe(side: &mut Side, t: &TypeUrl, name: &str, add: bool) -> DiscoveryRequest {
        side.started = true;
        match (name, add) {
            ("*", add) => {
                side.wildcard = add;
                side.ever_named |= !t.is_whole() || !add;
            }
            (name, true) => {
                side.named.insert(name.into());
                side.ever_named = true;
            }
            (name, false) => drop(side.named.remove(name)),
        }
        // As long as no name was ever given, an empty list asks for everything there is of a whole type.
        if !side.ever_named || (side.named.is_empty() && !side.wildcard && !side.told_names) {
            side.wildcard = t.is_whole();
            side.ever_named = false;
        }
        let request = Self::request(side, t);
        side.told_names |= !request.resource_names.is_empty();
        side.forget(t);
        request
    }

    fn take(side: &mut Side, t: &TypeUrl, seen: Seen, accept: bool) -> DiscoveryRequest {
        if accept {
            if t.is_whole() {
                side.held.clear();
            }
            for (name, version) in seen.resources {
                if side.wants(t, &name) {
                    side.held.insert(name, version);
                }
            }
        }
        side.nonce = seen.nonce;
        DiscoveryRequest {
            error_detail: (!accept).then(Status::default),
            ..Self::request(side, t)
        }
    }

    fn tells_removals(t: &TypeUrl) -> bool {
        t.is_whole()
    }
}

/// What a client that keeps to the rules wants and has of one type.
#[derive(Default)]
pub(super) struct Side {
    pub(super) started: bool,
    pub(super) wildcard: bool,
    pub(super) ever_named: bool,
    pub(super) told_names: bool,
    pub(super) named: BTreeSet<String>,
    pub(super) held: BTreeMap<String, String>,
    pub(super) nonce: String,
}

impl Side {
    pub(super) fn wants(&self, t: &TypeUrl, name: &str) -> bool {
        let parent = name.rsplit_once('/').map(|(parent, _)| parent);
        let of_parent = *t == VirtualHost && parent.is_some_and(|p| self.named.contains(p));
        self.wildcard || self.named.contains(name) || of_parent
    }

    /// What is no longer wanted is no longer kept.
    fn forget(&mut self, t: &TypeUrl) {
        let mut held = std::mem::take(&mut self.held);
        held.retain(|name, _| self.wants(t, name));
        self.held = held;
    }
}
