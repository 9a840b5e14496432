//! The incremental variant: requests add and remove names, responses carry what changed and what is gone.

use crate::Text;
use std::collections::BTreeMap;

use pilotfish_protos::envoy::config::core::v3::Node;
use pilotfish_protos::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, Resource,
};
use prost::Message as _;

use crate::bundle::Bundle;
use crate::frame::{Bundles, Frames, delta_response, whole};
use crate::health::Health;
use crate::names::Names;
use crate::nonce::Nonce;
use crate::proof::{Basis, Doubt, Mark, Marks};
use crate::question::{Answer, Question};
use crate::resource::{Version, View};
use crate::session::{
    Generation, Protocol, Rejection, Reply, RequestError, Response, SessionConfig, Verdict, Watches,
};
use crate::subscription::{Listed, WILDCARD};
use crate::type_url::TypeUrl;
use crate::watch::{Item, Watch};

/// One incremental stream.
#[derive(Debug)]
pub struct Session {
    watches: Watches,
    /// The client came without clusters.
    is_new: bool,
    doubt: Doubt,
    marks: Marks,
}

impl Protocol for Session {
    type Request = DeltaDiscoveryRequest;

    fn new(config: SessionConfig) -> Self {
        Self {
            watches: Watches::new(config),
            is_new: false,
            doubt: Doubt::default(),
            marks: Marks::default(),
        }
    }

    fn node(request: &DeltaDiscoveryRequest) -> Option<&Node> {
        request.node.as_ref()
    }

    fn health(request: &DeltaDiscoveryRequest) -> Option<Health> {
        Health::of(&request.type_url, request.error_detail.as_ref())
    }

    fn question(request: &DeltaDiscoveryRequest) -> Option<Question> {
        Question::of(
            &request.type_url,
            &request.resource_names_subscribe,
            &request.response_nonce,
            request.error_detail.is_some(),
        )
    }

    fn answer(&mut self, question: &Question, answer: Answer) -> Frames {
        let nonce = self.watches.next_nonce().to_string();
        let resource = |(name, any)| Resource {
            name,
            version: nonce.clone(),
            resource: Some(any),
            ..Resource::default()
        };
        let response = DeltaDiscoveryResponse {
            resources: answer.resources.into_iter().map(resource).collect(),
            type_url: question.type_url.clone(),
            control_plane: answer.control_plane,
            nonce: nonce.clone(),
            ..DeltaDiscoveryResponse::default()
        };
        whole(&response.encode_to_vec())
    }

    fn on_request_for(
        &mut self,
        request: DeltaDiscoveryRequest,
        held: Option<Names>,
    ) -> Result<Reply, RequestError> {
        let type_url = self.watches.type_of(&request.type_url)?;
        self.watches
            .check(request.resource_names_subscribe.iter())?;
        self.watches
            .check(request.resource_names_unsubscribe.iter())?;
        let first = self.watches.get(&type_url).is_none();
        let verdict = if first {
            self.watches.check(
                request
                    .initial_resource_versions
                    .keys()
                    .collect::<Vec<_>>()
                    .into_iter(),
            )?;
            self.start(&type_url, request, held);
            Verdict::None
        } else {
            self.update(&type_url, request, held.as_ref())
        };
        self.watches.check_total(&type_url)?;
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
        let nonce = self.watches.next_nonce();
        let basis = self.basis(type_url, nonce);
        let watch = self.watches.get_mut(type_url)?;
        let (bundles, removed) = if let Some(first) = watch.first(&view, &pool, &basis) {
            (first.bundles, first.missing)
        } else {
            let items = watch.items(&view, &basis);
            watch.linger(&items, hold);
            let (mut resources, mut removed) = (Vec::new(), Vec::new());
            for item in items {
                match item {
                    Item::Set(r) => resources.push(r),
                    Item::Gone(..) if hold => {}
                    Item::Missing(name) | Item::Gone(name, _) => removed.push(name),
                }
            }
            if resources.is_empty() && removed.is_empty() && !watch.wants_answer() {
                watch.settle(view, generation);
                return None;
            }
            (
                Bundles::from_iter([Bundle::new(resources, Vec::new(), &basis)]),
                removed,
            )
        };
        if *type_url == TypeUrl::Cluster {
            self.clusters_sent(&view, &bundles, &basis);
        }
        let version = Bundle::version_of(&bundles);
        self.watches
            .get_mut(type_url)?
            .record(nonce, view, generation, version, removed.iter());
        self.watches.share_names(type_url);
        Some(respond(type_url, nonce, bundles, &removed))
    }

    fn withdraw(&mut self, type_url: &TypeUrl) -> Option<Response> {
        let names = self.watches.get_mut(type_url)?.take_lingering();
        if names.is_empty() {
            return None;
        }
        let nonce = self.watches.next_nonce();
        self.watches
            .get_mut(type_url)?
            .record_withdrawal(nonce, Version::default(), &names, false);
        Some(respond(type_url, nonce, Bundles::new(), &names))
    }

    fn watches(&self) -> &Watches {
        &self.watches
    }

    fn watches_mut(&mut self) -> &mut Watches {
        &mut self.watches
    }
}

fn respond(type_url: &TypeUrl, nonce: Nonce, bundles: Bundles, removed: &[Text]) -> Response {
    Response {
        type_url: type_url.clone(),
        nonce,
        resources: bundles.iter().map(|b| b.resources.len()).sum(),
        frames: delta_response(type_url.as_str(), &nonce.to_string(), bundles, removed),
        removed: removed.len(),
    }
}

impl Session {
    /// What the versions of a type are made from in a response. Of clusters that is the first section, which is the same for
    /// many clients; endpoints whose cluster is in another one are sent on every stream.
    fn basis(&mut self, type_url: &TypeUrl, nonce: Nonce) -> Basis {
        match type_url {
            TypeUrl::Cluster => {
                if self.is_certain() {
                    self.doubt = Doubt::default();
                }
                if self.doubt.is_empty() {
                    Basis::Content
                } else {
                    Basis::Doubt(self.doubt.clone(), Mark::of(nonce))
                }
            }
            TypeUrl::Endpoints => {
                let clusters = self.watches.get(&TypeUrl::Cluster);
                let clusters = clusters.filter(|w| w.subscription().is_wildcard());
                let sent = clusters.and_then(|w| w.base().main());
                Basis::Clusters(sent.cloned().unwrap_or_default(), self.marks.clone())
            }
            _ => Basis::Content,
        }
    }

    /// Whether the client is known to hold the clusters that it was sent, and endpoints that came after them.
    fn is_certain(&self) -> bool {
        let clusters = self.watches.get(&TypeUrl::Cluster);
        let endpoints = self.watches.get(&TypeUrl::Endpoints);
        clusters.is_some_and(Watch::is_certain) && endpoints.map_or(self.is_new, Watch::is_certain)
    }

    /// Clusters are being sent: takes note of the marks under which the client holds these and others, and of whose endpoints
    /// have to follow.
    fn clusters_sent(&mut self, view: &View, bundles: &Bundles, basis: &Basis) {
        let mut marked = Vec::new();
        if let Some(watch) = self.watches.get(&TypeUrl::Cluster) {
            let brought = watch.brought().filter_map(|(name, version)| {
                let is = &view.get(name)?.version;
                let mark = version.mark_of(*is);
                (version.is_content_of(*is) && mark != Mark::default())
                    .then(|| (mark, name.clone()))
            });
            marked.extend(brought);
        }
        let sent = || bundles.iter().flat_map(|b| &b.resources).map(|r| &r.name);
        let mark = |name: &Text| match basis {
            Basis::Doubt(doubt, mark) if doubt.has(name) => *mark,
            _ => Mark::default(),
        };
        if !self.marks.is_empty() || matches!(basis, Basis::Doubt(..)) {
            marked.extend(sent().map(|name| (mark(name), name.clone())));
        }
        if !marked.is_empty() {
            self.marks.set(marked, &self.watches.pool().names);
        }
        self.doubt.add(sent());
        self.watches.clusters_sent(sent());
    }

    /// The first request of a type. Its nonce, if it has one, is of another stream and means nothing.
    fn start(&mut self, type_url: &TypeUrl, request: DeltaDiscoveryRequest, held: Option<Names>) {
        let initial: BTreeMap<Text, Option<Version>> = request
            .initial_resource_versions
            .iter()
            .map(|(name, version)| (Text::from(name.as_str()), Version::parse(version)))
            .collect();
        if *type_url == TypeUrl::Cluster {
            self.is_new = initial.is_empty();
            if !self.is_new {
                self.doubt = Doubt::All;
            }
        }
        let mut watch = Watch::new(type_url, initial);
        let unsubscribes_all = request
            .resource_names_unsubscribe
            .iter()
            .any(|n| n == WILDCARD);
        let names = &self.watches.pool().names;
        let listed = Listed::of(request.resource_names_subscribe, held, names);
        let all = type_url.is_whole_if_unnamed() && !unsubscribes_all;
        watch
            .subscription
            .set_wildcard(listed.wildcard || listed.is_empty() && all);
        watch.subscription.replace(listed.names);
        self.watches.start(type_url, watch);
        // Who came without clusters is sent them without marks: endpoints of an earlier stream look like those to come.
        if self.is_new
            && let Some(endpoints) = self.watches.get_mut(&TypeUrl::Endpoints)
        {
            endpoints.distrust();
        }
    }

    /// Any later request. A subscription counts whatever response the client had seen when it sent it.
    fn update(
        &mut self,
        type_url: &TypeUrl,
        request: DeltaDiscoveryRequest,
        held: Option<&Names>,
    ) -> Verdict {
        let Some(watch) = self.watches.get_mut(type_url) else {
            return Verdict::None;
        };
        let verdict = match (Nonce::parse(&request.response_nonce), &request.error_detail) {
            _ if request.response_nonce.is_empty() => Verdict::None,
            (Some(nonce), None) if watch.ack(nonce) => Verdict::Ack(nonce),
            (Some(nonce), Some(error)) if watch.nack(nonce, &error.message) => {
                let message = error.message.clone();
                Verdict::Nack(Rejection { nonce, message })
            }
            _ => Verdict::Stale,
        };
        for name in request.resource_names_unsubscribe {
            if name == WILDCARD {
                watch.subscription.set_wildcard(false);
            } else {
                let name = watch.intern(name);
                watch.subscription.remove(&name);
                if watch.subscription.is_wildcard() {
                    // The client cannot know whether the name is part of "all": it must be told.
                    watch.asked.insert(name);
                    watch.answer = true;
                }
            }
        }
        for name in held.into_iter().flat_map(Names::iter) {
            watch.subscription.add(name.clone());
            watch.ask(name.clone());
        }
        for name in request.resource_names_subscribe {
            if name == WILDCARD {
                watch.subscription.set_wildcard(true);
                watch.resend_all();
            } else {
                let name = watch.intern(name);
                watch.subscription.add(name.clone());
                watch.ask(name);
            }
        }
        watch.forget_unwanted();
        verdict
    }
}
