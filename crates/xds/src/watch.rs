//! What one stream knows of one type: what the client wants, what it was sent and what it said about it.
//!
//! **What the client holds** is not copied: it is the last view that was sent (`base`) restricted to the subscription.
//! Where that is uncertain, because a response was rejected, the views it may hold instead are kept too (`suspects`); the
//! next response then names everything that differs from any of them, and its acceptance ends the doubt.
//! A rejection alone never causes a response: only other content, or a request, does.

use crate::Text;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::SystemTime;

use crate::bundle::{Bundle, Pool};
use crate::frame::Bundles;
use crate::nonce::Nonce;
use crate::proof::Basis;
use crate::resource::{Change, Resource, Version, View};
use crate::session::{Generation, Rejection};
use crate::subscription::Subscription;
use crate::type_url::TypeUrl;

/// Views a client may hold after rejections; more than a few only if it rejects one change after another.
const MAX_SUSPECTS: usize = 4;
/// Responses without answer that are remembered; more only if a client asks and asks and never answers.
const MAX_UNANSWERED: usize = 8;

type Names = BTreeSet<Text>;

/// A response that the client has not answered yet.
#[derive(Debug)]
struct Sent {
    nonce: Nonce,
    /// What the client held before.
    prior: View,
    /// What it was to hold then.
    view: View,
    /// Names in the response for another reason than a difference from `prior`.
    names: Names,
    /// The newest suspect that the response has dealt with; 0 for none.
    suspects: u64,
    generation: Generation,
}

/// One resource that a response has to mention.
#[derive(Debug)]
pub(crate) enum Item {
    /// It is there.
    Set(Arc<Resource>),
    /// It is not there, and the client asked.
    Missing(Text),
    /// It was there and is no more.
    Gone(Text, Option<Arc<Resource>>),
}

impl Item {
    pub(crate) fn name(&self) -> &Text {
        match self {
            Self::Set(r) => &r.name,
            Self::Missing(name) | Self::Gone(name, _) => name,
        }
    }
}

/// What a client wants of a view.
pub(crate) struct Selection {
    pub(crate) bundles: Bundles,
    /// Names it asked for that are not there.
    pub(crate) missing: Vec<Text>,
}

/// The state of one type on one stream.
#[derive(Debug)]
pub struct Watch {
    pub(crate) subscription: Subscription,
    /// Names were subscribed to at some time: an empty list is no wildcard any more (state of the world).
    pub(crate) ever_named: bool,
    base: View,
    suspects: Vec<(u64, View)>,
    last_suspect: u64,
    unanswered: VecDeque<Sent>,
    /// The client must get a response, even an empty one.
    pub(crate) answer: bool,
    /// Names the client asked for: sent even if unchanged, reported if missing.
    pub(crate) asked: Names,
    /// Names to send again if they exist, because what refers to them was sent.
    refresh: Names,
    /// Names that were in a rejected response: sent along with the next one.
    owed: Names,
    /// Held by the client, gone from the view, not withdrawn yet.
    lingering: BTreeMap<Text, Option<Arc<Resource>>>,
    /// What the client brought along from another stream, until the first response, with versions that may be proof.
    initial: Option<BTreeMap<Text, Option<Version>>>,
    sent: Option<Nonce>,
    acked: Option<Nonce>,
    /// When the last response was sent; the stream says so, since nothing here has a clock.
    pub(crate) sent_at: Option<SystemTime>,
    rejected: Option<Rejection>,
    version: Option<Version>,
    generation: Generation,
    acked_generation: Generation,
}

impl Watch {
    /// A watch as of its first request, which is always answered.
    pub(crate) fn new(type_url: &TypeUrl, initial: BTreeMap<Text, Option<Version>>) -> Self {
        Self {
            subscription: Subscription::new(type_url),
            ever_named: false,
            base: View::default(),
            suspects: Vec::new(),
            last_suspect: 0,
            unanswered: VecDeque::new(),
            answer: true,
            asked: Names::new(),
            refresh: Names::new(),
            owed: Names::new(),
            lingering: BTreeMap::new(),
            initial: Some(initial),
            sent: None,
            acked: None,
            sent_at: None,
            rejected: None,
            version: None,
            generation: Generation(0),
            acked_generation: Generation(0),
        }
    }

    /// What the client subscribed to.
    pub fn subscription(&self) -> &Subscription {
        &self.subscription
    }

    /// The last response sent.
    pub fn sent(&self) -> Option<Nonce> {
        self.sent
    }

    /// The last response accepted.
    pub fn acked(&self) -> Option<Nonce> {
        self.acked
    }

    /// The last response, if it was rejected.
    pub fn rejected(&self) -> Option<&Rejection> {
        self.rejected.as_ref()
    }

    /// Hash of what the last response contained.
    pub fn version(&self) -> Option<Version> {
        self.version
    }

    /// The generation that was compared with last, whether or not that led to a response.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The last generation that the client is known to hold.
    pub fn acked_generation(&self) -> Generation {
        self.acked_generation
    }

    /// Whether a response waits for its answer.
    pub fn in_flight(&self) -> bool {
        !self.unanswered.is_empty()
    }

    /// Whether a request waits for a response.
    pub fn wants_answer(&self) -> bool {
        self.answer
    }

    /// Whether resources are to be sent again because what refers to them was sent.
    pub fn wants_refresh(&self) -> bool {
        !self.refresh.is_empty()
    }

    /// Whether the client is known to hold what it was sent, all of it and nothing else.
    pub(crate) fn is_certain(&self) -> bool {
        self.initial.is_none()
            && self.unanswered.is_empty()
            && self.suspects.is_empty()
            && self.rejected.is_none()
            && self.refresh.is_empty()
            && self.owed.is_empty()
            && self.lingering.is_empty()
    }

    /// What the client brought along and still holds if the first response says nothing else, with versions that it
    /// reported.
    pub(crate) fn brought(&self) -> impl Iterator<Item = (&Text, Version)> {
        let initial = self.initial.iter().flatten();
        initial.filter_map(|(name, version)| version.map(|version| (name, version)))
    }

    /// No version that the client brought along is proof of anything.
    pub(crate) fn distrust(&mut self) {
        for version in self.initial.iter_mut().flat_map(BTreeMap::values_mut) {
            *version = None;
        }
    }

    /// Whether resources wait to be withdrawn.
    pub fn is_lingering(&self) -> bool {
        !self.lingering.is_empty()
    }

    /// What the client was sent and still wants; after a rejection it may hold something else.
    pub fn held(&self) -> impl Iterator<Item = &Arc<Resource>> {
        let lingering = self.lingering.values().flatten();
        self.base
            .iter()
            .filter(|r| self.subscription.covers(&r.name))
            .chain(lingering)
    }

    /// The shared name of a resource, if one of that name was sent, else a new one.
    pub(crate) fn intern(&self, name: String) -> Text {
        self.base
            .get(&name)
            .map_or_else(|| Text::from(name), |r| r.name.clone())
    }

    /// The client asked for a name, and gets an answer. A response that is still under way may yet bring hosts of a table
    /// that are gone by then, and that the client had no use for when it went; those are answered one by one.
    pub(crate) fn ask(&mut self, name: Text) {
        if self.subscription.is_namespaced() {
            let under_way = self.unanswered.iter();
            let hosts = under_way.flat_map(|s| s.view.with_prefix(format!("{name}/")));
            self.asked.extend(hosts.map(|r| r.name.clone()));
        }
        self.asked.insert(name);
        self.answer = true;
    }

    /// Everything is to be sent again, whatever the client may hold.
    pub(crate) fn resend_all(&mut self) {
        // A response that is still under way may yet bring what has been gone since.
        let under_way: Vec<_> = self.unanswered.iter().map(|s| s.view.clone()).collect();
        for view in under_way {
            self.suspect(view);
        }
        let base = std::mem::take(&mut self.base);
        self.suspect(base);
        self.answer = true;
    }

    /// Send these again if they exist and are wanted.
    pub(crate) fn refresh<'a>(&mut self, names: impl IntoIterator<Item = &'a Text>) {
        let wanted = names
            .into_iter()
            .filter(|n| self.subscription.covers(n))
            .cloned();
        self.refresh.extend(wanted);
    }

    /// Forgets what concerns names that are no longer wanted.
    pub(crate) fn forget_unwanted(&mut self) {
        let subscription = &self.subscription;
        for names in [&mut self.asked, &mut self.refresh, &mut self.owed] {
            names.retain(|n| subscription.covers(n));
        }
        self.lingering.retain(|n, _| subscription.covers(n));
    }

    fn suspect(&mut self, view: View) {
        if self.suspects.len() == MAX_SUSPECTS {
            // Names instead of the view: they are sent along with the next response, changed or not.
            let (_, oldest) = self.suspects.remove(0);
            let names = oldest.changes(&self.base).map(|c| c.name().clone());
            self.owed
                .extend(names.filter(|n| self.subscription.covers(n)));
        }
        self.last_suspect += 1;
        self.suspects.push((self.last_suspect, view));
    }

    /// The client accepted a response, and with it all earlier ones. False if it is none of those that wait.
    pub(crate) fn ack(&mut self, nonce: Nonce) -> bool {
        let Some(at) = self.unanswered.iter().position(|s| s.nonce == nonce) else {
            return false;
        };
        for sent in self.take_answered(at) {
            self.suspects.retain(|(since, _)| *since > sent.suspects);
            self.acked_generation = sent.generation;
        }
        self.acked = Some(nonce);
        if self.unanswered.is_empty() {
            self.rejected = None;
        }
        true
    }

    /// Takes out the responses up to one that was answered. A client that has answered all, as most have most of the time,
    /// takes no room here.
    fn take_answered(&mut self, last: usize) -> VecDeque<Sent> {
        let waiting = self.unanswered.split_off(last + 1);
        std::mem::replace(&mut self.unanswered, waiting)
    }

    /// The client rejected a response. False if it is none of those that wait.
    pub(crate) fn nack(&mut self, nonce: Nonce, message: &str) -> bool {
        let Some(at) = self.unanswered.iter().position(|s| s.nonce == nonce) else {
            return false;
        };
        let mut answered = self.take_answered(at);
        let rejected = answered.pop_back();
        for sent in answered {
            self.acked = Some(sent.nonce);
            self.acked_generation = sent.generation;
        }
        if let Some(sent) = rejected {
            self.doubt(sent);
        }
        self.rejected = Some(Rejection {
            nonce,
            message: message.chars().take(4096).collect(),
        });
        true
    }

    /// None, some or all of a response may have been applied.
    fn doubt(&mut self, sent: Sent) {
        self.owed.extend(sent.names);
        self.suspect(sent.prior);
    }

    /// Whether this view calls for a response.
    pub(crate) fn is_due(&self, view: &View) -> bool {
        self.answer
            || !self.asked.is_empty()
            || self.refresh.iter().any(|n| view.get(n).is_some())
            || self
                .base
                .changes(view)
                .any(|c| self.subscription.covers(c.name()))
    }

    /// Nobody serves the type: nothing will be answered.
    pub(crate) fn ignore(&mut self) {
        self.answer = false;
        self.asked.clear();
        self.refresh.clear();
    }

    /// The view was compared and calls for nothing.
    pub(crate) fn settle(&mut self, view: View, generation: Generation) {
        self.base = view;
        self.refresh.clear();
        self.generation = generation;
        if self.unanswered.is_empty() && self.rejected.is_none() {
            self.acked_generation = generation;
        }
    }

    /// The request is left without a response, since there is nothing to put into it.
    pub(crate) fn leave(&mut self, view: View, generation: Generation) {
        self.answer = false;
        self.asked.clear();
        self.settle(view, generation);
    }

    /// What a complete response may bring anew without a change: the client has rejected it, or may be about to.
    pub(crate) fn doubtful(&self, view: &View) -> Names {
        let rejected = self.suspects.iter().map(|(_, view)| view);
        let under_way = self.unanswered.iter().map(|s| &s.prior);
        let owed = self.unanswered.iter().flat_map(|s| &s.names);
        rejected
            .chain(under_way)
            .flat_map(|held| held.changes(view).map(|c| c.name().clone()))
            .chain(owed.chain(&self.owed).cloned())
            .filter(|n| self.subscription.covers(n))
            .collect()
    }

    /// All that the next response has to mention, ordered by name, no name twice.
    pub(crate) fn items(&self, view: &View, basis: &Basis) -> Vec<Item> {
        let mut items = Vec::new();
        match &self.initial {
            Some(initial) => self.first_items(view, initial, basis, &mut items),
            None => {
                for held in
                    std::iter::once(&self.base).chain(self.suspects.iter().map(|(_, view)| view))
                {
                    items.extend(
                        held.changes(view)
                            .filter(|c| self.subscription.covers(c.name()))
                            .map(|c| match c {
                                Change::Set(r) => Item::Set(r.clone()),
                                Change::Removed(r) => Item::Gone(r.name.clone(), Some(r.clone())),
                            }),
                    );
                }
            }
        }
        for name in self.asked.iter().chain(&self.owed) {
            self.resolve(name, view, &mut items);
        }
        items.extend(
            self.refresh
                .iter()
                .filter_map(|n| view.get(n))
                .cloned()
                .map(Item::Set),
        );
        // A stable sort and the order above make "it was there" give way to "it is missing, as asked" below.
        items.sort_by(|a, b| a.name().cmp(b.name()));
        items.dedup_by(|later, first| {
            let same = later.name() == first.name();
            if same && matches!(later, Item::Missing(_)) {
                std::mem::swap(later, first);
            }
            same
        });
        items
    }

    /// The first response: all that the client does not hold at that version already.
    fn first_items(
        &self,
        view: &View,
        initial: &BTreeMap<Text, Option<Version>>,
        basis: &Basis,
        items: &mut Vec<Item>,
    ) {
        let differs = |r: &Arc<Resource>| {
            let held = initial.get(&r.name).copied().flatten();
            !held.is_some_and(|held| basis.is_proof(held, r))
        };
        if self.subscription.is_wildcard() {
            items.extend(view.iter().filter(|r| differs(r)).cloned().map(Item::Set));
        }
        for name in self.subscription.named().iter() {
            let from = items.len();
            self.resolve(name, view, items);
            let named = items.split_off(from);
            items.extend(
                named
                    .into_iter()
                    .filter(|i| !matches!(i, Item::Set(r) if !differs(r))),
            );
        }
        let gone = initial
            .keys()
            .filter(|n| self.subscription.covers(n) && view.get(n).is_none());
        items.extend(gone.map(|n| Item::Gone(n.clone(), None)));
    }

    /// What a name that was asked for stands for.
    fn resolve(&self, name: &Text, view: &View, items: &mut Vec<Item>) {
        let from = items.len();
        items.extend(view.get(name).cloned().map(Item::Set));
        if self.subscription.is_namespaced() {
            let within = view.with_prefix(format!("{name}/"));
            items.extend(within.cloned().map(Item::Set));
        }
        if items.len() == from && self.subscription.may_miss(name) {
            items.push(Item::Missing(name.clone()));
        }
    }

    /// The first response to a client that holds nothing. `None` if it has to say more than what there is.
    pub(crate) fn first(&self, view: &View, pool: &Pool, basis: &Basis) -> Option<Selection> {
        let holds_nothing = self.initial.as_ref().is_some_and(BTreeMap::is_empty)
            && self.suspects.is_empty()
            && self.owed.is_empty();
        // Under a wildcard a name that was asked for by itself has its own answer.
        let plain = !self.subscription.is_wildcard() || self.asked.is_empty();
        (holds_nothing && plain && basis.is_common())
            .then(|| self.select(view, pool, basis))
            .flatten()
    }

    /// All that is wanted of a view, in bundles that are shared with whoever wants the same. `None` if there is more to it.
    fn select(&self, view: &View, pool: &Pool, basis: &Basis) -> Option<Selection> {
        let subscription = &self.subscription;
        let all = subscription.is_wildcard();
        let others = view.others();
        if all && !subscription.named().is_empty()
            || subscription.is_namespaced() && !others.is_empty()
        {
            return None;
        }
        let main = pool.bundle(view.main()?, subscription, basis);
        let mut selection = Selection {
            missing: main.missing.clone(),
            bundles: Bundles::from_iter([main]),
        };
        if !others.is_empty() {
            let rest: Vec<_> = if all {
                view.iter_others().cloned().collect()
            } else {
                // What the first section lacks may be in another.
                let found = selection.missing.iter().filter_map(|n| view.get(n));
                found.cloned().collect()
            };
            selection.missing.retain(|n| view.get(n).is_none());
            let rest = Bundle::new(rest, Vec::new(), basis);
            selection.bundles.push(rest);
        }
        Some(selection)
    }

    /// Takes note that a response is on its way. `absent`: what it says is not there.
    pub(crate) fn record<'a>(
        &mut self,
        nonce: Nonce,
        view: View,
        generation: Generation,
        version: Version,
        absent: impl Iterator<Item = &'a Text>,
    ) {
        let mut names = std::mem::take(&mut self.asked);
        names.append(&mut self.refresh);
        names.append(&mut self.owed);
        if self.initial.take().is_some() {
            names.extend(absent.cloned());
        }
        self.answer = false;
        let prior = std::mem::replace(&mut self.base, view);
        self.generation = generation;
        self.push_sent(nonce, prior, names, self.last_suspect, version);
    }

    fn push_sent(
        &mut self,
        nonce: Nonce,
        prior: View,
        names: Names,
        suspects: u64,
        version: Version,
    ) {
        if self.unanswered.len() == MAX_UNANSWERED
            && let Some(sent) = self.unanswered.pop_front()
        {
            self.doubt(sent);
        }
        self.unanswered.push_back(Sent {
            nonce,
            prior,
            view: self.base.clone(),
            names,
            suspects,
            generation: self.generation,
        });
        self.sent = Some(nonce);
        self.version = Some(version);
    }

    /// Keeps resources that are gone until [`Watch::take_lingering`]. Those that are back, or that the client is told
    /// about anyway, are kept no longer.
    pub(crate) fn linger(&mut self, items: &[Item], hold: bool) {
        for item in items {
            match item {
                Item::Gone(name, was) if hold => {
                    self.lingering.insert(name.clone(), was.clone());
                }
                _ => {
                    self.lingering.remove(item.name());
                }
            }
        }
    }

    /// The names to withdraw now.
    pub(crate) fn take_lingering(&mut self) -> Vec<Text> {
        let names: Vec<_> = std::mem::take(&mut self.lingering).into_keys().collect();
        names
            .into_iter()
            .filter(|n| self.base.get(n).is_none())
            .collect()
    }

    /// Takes note that a withdrawal is on its way. Unless it is complete it says nothing about what was rejected before.
    pub(crate) fn record_withdrawal(
        &mut self,
        nonce: Nonce,
        version: Version,
        names: &[Text],
        complete: bool,
    ) {
        let suspects = if complete { self.last_suspect } else { 0 };
        let names = names.iter().cloned().collect();
        self.push_sent(nonce, self.base.clone(), names, suspects, version);
    }

    /// All that is wanted of a view, and what is yet to be withdrawn (state of the world).
    pub(crate) fn whole(&self, view: &View, pool: &Pool) -> Bundles {
        let basis = &Basis::Content;
        let mut bundles = self.select(view, pool, basis).map_or_else(
            || {
                let wanted = view.iter().filter(|r| self.subscription.covers(&r.name));
                let wanted = wanted.cloned().collect();
                Bundles::from_iter([Bundle::new(wanted, Vec::new(), basis)])
            },
            |selection| selection.bundles,
        );
        if self.is_lingering() {
            let rest = self.lingering.values().flatten().cloned().collect();
            bundles.push(Bundle::new(rest, Vec::new(), basis));
        }
        bundles
    }

    /// The view that was compared with last.
    pub(crate) fn base(&self) -> &View {
        &self.base
    }
}
