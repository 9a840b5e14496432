//! The state-of-the-world variant: a request lists all names it wants, a response of a whole type lists all there is.
//!
//! `version_info` is a hash of the response's content: equal content has an equal version on every replica. Nothing is
//! ever decided by comparing it, since a client that rejects keeps naming the version it has.

use std::collections::BTreeMap;

use pilotfish_protos::envoy::config::core::v3::Node;
use pilotfish_protos::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use prost::Message as _;

use crate::bundle::Bundle;
use crate::frame::{Bundles, Frames, discovery_response, whole};
use crate::health::Health;
use crate::names::Names;
use crate::nonce::Nonce;
use crate::proof::Basis;
use crate::question::{Answer, Question};
use crate::resource::{Version, View};
use crate::session::{
    Generation, Protocol, Rejection, Reply, RequestError, Response, SessionConfig, Verdict, Watches,
};
use crate::subscription::Listed;
use crate::type_url::TypeUrl;
use crate::watch::{Item, Watch};

/// One state-of-the-world stream.
#[derive(Debug)]
pub struct Session {
    watches: Watches,
}

impl Protocol for Session {
    type Request = DiscoveryRequest;

    fn new(config: SessionConfig) -> Self {
        Self {
            watches: Watches::new(config),
        }
    }

    fn node(request: &DiscoveryRequest) -> Option<&Node> {
        request.node.as_ref()
    }

    fn health(request: &DiscoveryRequest) -> Option<Health> {
        Health::of(&request.type_url, request.error_detail.as_ref())
    }

    fn question(request: &DiscoveryRequest) -> Option<Question> {
        Question::of(
            &request.type_url,
            &request.resource_names,
            &request.response_nonce,
            request.error_detail.is_some(),
        )
    }

    fn answer(&mut self, question: &Question, answer: Answer) -> Frames {
        let nonce = self.watches.next_nonce().to_string();
        let response = DiscoveryResponse {
            version_info: nonce.clone(),
            resources: answer.resources.into_iter().map(|(_, any)| any).collect(),
            type_url: question.type_url.clone(),
            nonce,
            control_plane: answer.control_plane,
            ..DiscoveryResponse::default()
        };
        whole(&response.encode_to_vec())
    }

    fn on_request_for(
        &mut self,
        mut request: DiscoveryRequest,
        held: Option<Names>,
    ) -> Result<Reply, RequestError> {
        let type_url = self.watches.type_of(&request.type_url)?;
        self.watches.check(request.resource_names.iter())?;
        let list = std::mem::take(&mut request.resource_names);
        let listed = Listed::of(list, held, &self.watches.pool().names);
        let first = self.watches.get(&type_url).is_none();
        let verdict = if first {
            let mut watch = Watch::new(&type_url, BTreeMap::new());
            subscribe(&mut watch, &type_url, listed);
            watch.asked.clear();
            self.watches.start(&type_url, watch);
            Verdict::None
        } else {
            self.update(&type_url, &request, listed)
        };
        Ok(Reply {
            type_url,
            verdict,
            first,
        })
    }

    fn push(&mut self, type_url: &TypeUrl, view: View, generation: Generation) -> Option<Response> {
        let hold = self.watches.holds_removals(type_url);
        let watch = self.watches.get_mut(type_url)?;
        if !view.is_known() {
            watch.ignore();
            return None;
        }
        if !watch.is_due(&view) {
            watch.settle(view, generation);
            return None;
        }
        let pool = self.watches.pool().clone();
        let watch = self.watches.get_mut(type_url)?;
        let whole = type_url.is_whole();
        let (mut bundles, absent) = if let Some(first) = watch.first(&view, &pool, &Basis::Content)
        {
            (first.bundles, first.missing)
        } else {
            let items = watch.items(&view, &Basis::Content);
            if whole {
                watch.linger(&items, hold);
            }
            let (mut resources, mut absent) = (Vec::new(), Vec::new());
            for item in items {
                match item {
                    Item::Set(r) => resources.push(r),
                    Item::Missing(name) | Item::Gone(name, _) => absent.push(name),
                }
            }
            (
                Bundles::from_iter([Bundle::new(resources, Vec::new(), &Basis::Content)]),
                absent,
            )
        };
        let is_empty = bundles.iter().all(|b| b.resources.is_empty());
        // Of a type that is sent by name a removal cannot be told; clusters keep theirs for later.
        let deferred = is_empty && (hold || !whole);
        if deferred && !watch.wants_answer() {
            watch.settle(view, generation);
            return None;
        }
        // The proxy does without; an empty response would tell it nothing, and Envoy may take it for an error.
        if is_empty && type_url.is_optional() {
            watch.leave(view, generation);
            return None;
        }
        if *type_url == TypeUrl::Cluster {
            let doubtful = watch.doubtful(&view);
            let sent = bundles.iter().flat_map(|b| &b.resources);
            self.watches
                .clusters_sent(sent.map(|r| &r.name).chain(&doubtful));
        }
        let nonce = self.watches.next_nonce();
        let watch = self.watches.get_mut(type_url)?;
        if whole {
            bundles = watch.whole(&view, &pool);
        }
        let version = Bundle::version_of(&bundles);
        watch.record(nonce, view, generation, version, absent.iter());
        self.watches.share_names(type_url);
        Some(respond(type_url, version, nonce, bundles))
    }

    fn withdraw(&mut self, type_url: &TypeUrl) -> Option<Response> {
        let names = self.watches.get_mut(type_url)?.take_lingering();
        if names.is_empty() {
            return None;
        }
        if *type_url == TypeUrl::Cluster {
            let watch = self.watches.get(type_url)?;
            let doubtful = watch.doubtful(watch.base());
            self.watches.clusters_sent(doubtful.iter());
        }
        let nonce = self.watches.next_nonce();
        let pool = self.watches.pool().clone();
        let watch = self.watches.get_mut(type_url)?;
        let bundles = watch.whole(watch.base(), &pool);
        let version = Bundle::version_of(&bundles);
        watch.record_withdrawal(nonce, version, &names, true);
        Some(respond(type_url, version, nonce, bundles))
    }

    fn watches(&self) -> &Watches {
        &self.watches
    }

    fn watches_mut(&mut self) -> &mut Watches {
        &mut self.watches
    }
}

fn respond(type_url: &TypeUrl, version: Version, nonce: Nonce, bundles: Bundles) -> Response {
    Response {
        type_url: type_url.clone(),
        nonce,
        resources: bundles.iter().map(|b| b.resources.len()).sum(),
        frames: discovery_response(type_url.as_str(), version, &nonce.to_string(), bundles),
        removed: 0,
    }
}

impl Session {
    /// Any request but the first of its type.
    fn update(
        &mut self,
        type_url: &TypeUrl,
        request: &DiscoveryRequest,
        listed: Listed,
    ) -> Verdict {
        let Some(watch) = self.watches.get_mut(type_url) else {
            return Verdict::None;
        };
        if request.response_nonce.is_empty() {
            // Sent before the client saw any response: a subscription, not an answer.
            let changed = subscribe(watch, type_url, listed);
            if !changed {
                watch
                    .asked
                    .extend(watch.subscription.named().iter().cloned());
            }
            watch.answer = true;
            return Verdict::None;
        }
        let Some(nonce) = Nonce::parse(&request.response_nonce) else {
            return Verdict::Stale;
        };
        let newest = Some(nonce) == watch.sent();
        let verdict = match &request.error_detail {
            Some(error) if watch.nack(nonce, &error.message) => Verdict::Nack(Rejection {
                nonce,
                message: error.message.clone(),
            }),
            None if watch.ack(nonce) && newest => Verdict::Ack(nonce),
            _ if newest => Verdict::None,
            _ => Verdict::Stale,
        };
        // A stale request is not answered: the client repeats its subscription when it answers the newest response. It
        // may take names away, though, so that one that is gone and back by then is known to be wanted anew.
        if !newest {
            if watch.sent().is_some_and(|sent| sent.is_same_stream(nonce)) {
                unsubscribe(watch, type_url, &listed);
            }
            return verdict;
        }
        if subscribe(watch, type_url, listed) {
            watch.answer = true;
        }
        verdict
    }
}

/// Whether a list of names asks for everything.
fn wants_all(watch: &Watch, type_url: &TypeUrl, listed: &Listed) -> bool {
    listed.wildcard || (listed.is_empty() && !watch.ever_named && type_url.is_whole())
}

/// Takes away what is not in the list.
fn unsubscribe(watch: &mut Watch, type_url: &TypeUrl, listed: &Listed) {
    let wildcard = watch.subscription.is_wildcard() && wants_all(watch, type_url, listed);
    watch.ever_named |= !listed.is_empty();
    watch.subscription.set_wildcard(wildcard);
    let kept = watch.subscription.named().iter();
    let kept = kept.filter(|n| listed.names.contains(n)).cloned().collect();
    watch.subscription.replace(kept);
    watch
        .asked
        .retain(|n| watch.subscription.named().contains(n));
    watch.forget_unwanted();
}

/// Replaces the subscription. True if it asks for something that it did not ask for before.
fn subscribe(watch: &mut Watch, type_url: &TypeUrl, listed: Listed) -> bool {
    let wildcard = wants_all(watch, type_url, &listed);
    watch.ever_named |= !listed.is_empty();
    let names = listed.names;
    if watch.subscription.is_wildcard() == wildcard && *watch.subscription.named() == names {
        return false;
    }
    let added = watch.subscription.new_among(&names);
    watch.subscription.replace(names);
    let newly_all = watch.subscription.set_wildcard(wildcard) && wildcard;
    if newly_all {
        watch.resend_all();
    }
    let asks = newly_all || !added.is_empty();
    watch
        .asked
        .retain(|n| watch.subscription.named().contains(n));
    watch.asked.extend(added);
    watch.forget_unwanted();
    asks
}
