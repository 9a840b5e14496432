//! Lists and watches one resource, for ever. What is done with the objects is up to a [`Keep`].
//!
//! This is written on kube-rs' client and not on its watcher, since the watcher hides what the rules here need: the version
//! of a list (is it older than what was seen?), bookmarks (is the watch alive?) and the form of an error.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::RngExt;
use tokio::sync::watch;

use super::ages::{Ages, Verdict};
use super::backoff::{Backoff, LONGEST};
use super::link::Link;
use super::wire::{self, Event, Events, Fault, Listing, Raw};

/// How often a resource that the server does not have is looked for, if nobody tells when that may have changed.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// How long the server must deny a resource that had objects, until they are believed to be gone.
const GONE_FOR: Duration = Duration::from_secs(5);
/// The same for one that should be there, as far as is known.
const DENIED_FOR: Duration = Duration::from_secs(30);
/// A watch that ends sooner than this has not worked.
const SHORT: Duration = Duration::from_secs(1);

/// How the API server is asked.
#[derive(Debug, Clone)]
pub struct Timing {
    /// A watch that says nothing for so long is ended. Servers send a bookmark every minute.
    pub silence: Duration,
    /// How long a watch lasts at least, and at most twice; the server ends it.
    pub watch: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            silence: Duration::from_secs(90),
            watch: Duration::from_mins(5),
        }
    }
}

/// What is read.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// Paths without query, one for each version that will do, the best first.
    pub(super) paths: Vec<String>,
    /// Selects some objects by their fields, on the server.
    pub(super) field_selector: Option<String>,
    /// The same by their labels.
    pub(super) label_selector: Option<String>,
    /// Whether lists are streamed as events, if the server can. Otherwise they are asked for in pages.
    pub(super) stream: bool,
    /// How many objects make a page.
    pub(super) page: usize,
    /// Whether pages may be long, so that each has a connection of its own.
    pub(super) long: bool,
    /// The CRD that the resource needs. One without must be there.
    pub(super) definition: Option<String>,
    /// In which form answers are accepted.
    pub(super) accept: Accept,
}

/// In which form lists and events are accepted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Accept {
    pub(super) list: &'static str,
    pub(super) event: &'static str,
}

impl Accept {
    pub(super) const JSON: Self = Self::both("application/json");

    pub(super) const fn both(form: &'static str) -> Self {
        Self {
            list: form,
            event: form,
        }
    }
}

/// What is known of the CRDs that a server has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Definitions {
    /// The server has not answered yet.
    #[default]
    Asked,
    /// They cannot be read.
    Unknown,
    /// Their names; the number differs whenever something about them has changed.
    Known(Arc<BTreeSet<String>>, u64),
}

impl Definitions {
    /// How long the server must deny a resource until it is believed; `had` if there were objects of it. A server that
    /// starts denies much, and a CRD that was just made is not served yet.
    fn patience(&self, name: &str, had: bool) -> Duration {
        match self {
            Self::Known(names, _) if !names.contains(name) => Duration::ZERO,
            Self::Known(..) | Self::Asked => DENIED_FOR,
            Self::Unknown if had => GONE_FOR,
            Self::Unknown => Duration::ZERO,
        }
    }
}

/// What becomes of what was read. `flush` passes on what was learned; nothing is learned from half a list.
pub(super) trait Keep: Send {
    /// A list begins; what an earlier, incomplete one said is forgotten.
    fn begin(&mut self);
    /// An object of the list.
    fn item(&mut self, object: &Raw<'_>) -> Result<(), Fault>;
    /// The list was complete: what is not in it is gone.
    fn complete(&mut self);
    /// An object is new or has changed.
    fn upsert(&mut self, object: &Raw<'_>) -> Result<(), Fault>;
    /// An object is gone.
    fn delete(&mut self, object: &Raw<'_>) -> Result<(), Fault>;
    /// Whether there is any object now.
    fn is_empty(&self) -> bool;
    /// How the connection is.
    fn report(&mut self, condition: Condition);
    /// Passes on what was learned.
    fn flush(&mut self) -> impl Future<Output = ()> + Send;
}

/// How it goes with a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Condition {
    /// Listed and watched.
    Live,
    /// The server has no such resource.
    Absent,
    /// We may not read it.
    Forbidden(String),
    /// Not read, or not watched any more.
    Down(String),
}

/// Why a watch ended.
enum End {
    /// The server ended it in good order.
    Closed,
    /// It did not work.
    Fault(Fault),
    /// The list was from the past.
    Older(u64),
}

impl From<Fault> for End {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// Reads one resource until nobody wants it any more.
pub(super) struct Follower<'a, K> {
    link: &'a Link,
    place: &'a Place,
    keep: &'a mut K,
    timing: &'a Timing,
    definitions: watch::Receiver<Definitions>,
    ages: Ages,
    /// Which of the paths is in use.
    path: usize,
    /// Whether lists are streamed.
    streams: bool,
    /// From where to go on.
    resume: Option<u64>,
    /// Whether the current attempt got anywhere.
    progress: bool,
    /// Whether the server answered to the current attempt, be it with nothing.
    answered: bool,
    /// A watch broke off, and the server may be another since.
    in_doubt: bool,
}

impl<'a, K: Keep> Follower<'a, K> {
    pub(super) fn new(
        link: &'a Link,
        place: &'a Place,
        keep: &'a mut K,
        timing: &'a Timing,
        definitions: watch::Receiver<Definitions>,
    ) -> Self {
        Self {
            link,
            place,
            keep,
            timing,
            definitions,
            ages: Ages::default(),
            path: 0,
            streams: place.stream,
            resume: None,
            progress: false,
            answered: false,
            in_doubt: false,
        }
    }

    /// Does not return; whoever starts it ends it by dropping it.
    pub(super) async fn run(mut self) {
        let mut backoff = Backoff::default();
        let mut absent_since: Option<Instant> = None;
        // How many of the paths in a row were not there.
        let mut absent = 0;
        let mut was_unreachable = false;
        loop {
            let began = Instant::now();
            let mut found = self.link.found();
            self.definitions.mark_unchanged();
            let (client, generation) = self.link.client();
            (self.progress, self.answered) = (false, false);
            let end = match self.resume {
                Some(version) => self.resume(&client, version).await,
                None => self.list_and_watch(&client).await,
            };
            let Err(end) = end;
            self.keep.flush().await;
            if self.progress {
                backoff.reset();
                absent_since = None;
                absent = 0;
            }
            let chance = rand::rng().random::<f64>();
            let fault = match end {
                End::Closed if self.progress || began.elapsed() >= SHORT => continue,
                End::Closed => Fault::Failed("watches end as soon as they begin".to_owned()),
                End::Older(version) => {
                    self.resume = None;
                    Fault::Behind(format!(
                        "the server answers from the past, with version {version} where {} was seen",
                        self.ages.newest()
                    ))
                }
                End::Fault(fault) => fault,
            };
            let unreachable = matches!(fault, Fault::Unreachable(_));
            self.link.note(!unreachable);
            if was_unreachable && !unreachable {
                // Another trouble than before, and a server that says when to come again.
                backoff.reset();
            }
            was_unreachable = unreachable;
            let (condition, wait) = match &fault {
                Fault::Expired(reason) => {
                    self.resume = None;
                    // A version that has expired says nothing about the server's health: a new list is due at once.
                    let wait = if self.progress {
                        Duration::ZERO
                    } else {
                        backoff.next(chance)
                    };
                    tracing::debug!(target: "kubernetes", path = self.path(), reason, "listing again");
                    self.wait(wait).await;
                    continue;
                }
                Fault::Behind(reason) => {
                    self.resume = None;
                    self.ages.behind(Instant::now());
                    (Condition::Down(reason.clone()), backoff.next(chance))
                }
                Fault::Absent(reason) if let Some(name) = &self.place.definition => {
                    self.resume = None;
                    self.path = (self.path + 1) % self.place.paths.len();
                    absent += 1;
                    if absent < self.place.paths.len() {
                        continue;
                    }
                    (absent, self.path) = (0, 0);
                    let since = *absent_since.get_or_insert_with(Instant::now);
                    let had = !self.keep.is_empty();
                    let patience = self.definitions.borrow().patience(name, had);
                    if since.elapsed() >= patience {
                        // An empty list: what there was is gone.
                        self.keep.begin();
                        self.keep.complete();
                        self.ages = Ages::default();
                        self.keep.report(Condition::Absent);
                    } else {
                        self.keep.report(Condition::Down(reason.clone()));
                    }
                    self.keep.flush().await;
                    let known = matches!(*self.definitions.borrow(), Definitions::Known(..));
                    let wait = backoff.next(chance);
                    let wait = if known { wait } else { wait.min(LOOK_AGAIN) };
                    if self.until_definitions_change(wait).await {
                        backoff.reset();
                    }
                    continue;
                }
                Fault::Forbidden(reason) => {
                    self.path = 0;
                    self.resume = None;
                    (Condition::Forbidden(reason.clone()), backoff.next(chance))
                }
                Fault::Unauthorized(reason) | Fault::Unreachable(reason) => {
                    if unreachable {
                        // Whoever comes back from the dead may have been put back to a backup, and count versions anew
                        // that we have seen already: a watch would never tell. Between a watch that broke off and the
                        // next that is answered, nobody can say whether the server was dead.
                        self.in_doubt = self.answered;
                        self.resume = self.resume.filter(|_| self.answered);
                    }
                    self.link.renew(generation).await;
                    (Condition::Down(reason.clone()), backoff.next(chance))
                }
                Fault::Busy(reason, asked) | Fault::Broken(reason, asked) => {
                    if matches!(fault, Fault::Broken(..)) && !self.progress {
                        // The same as with those that are dead: what the server had may be put back meanwhile. One that
                        // is only busy has what it had, and lists would make it no better.
                        self.resume = None;
                    }
                    let wait = match asked {
                        Some(asked) => (*asked).min(LONGEST).mul_f64(1.0 + chance / 2.0),
                        None => backoff.next(chance),
                    };
                    (Condition::Down(reason.clone()), wait)
                }
                Fault::Unsupported(reason)
                | Fault::Conflict(reason)
                | Fault::Failed(reason)
                | Fault::Absent(reason) => (Condition::Down(reason.clone()), backoff.next(chance)),
            };
            tracing::debug!(target: "kubernetes", path = self.path(), reason = fault.reason(), ?wait, "trying again");
            self.keep.report(condition);
            self.keep.flush().await;
            // A server that somebody else has found again is there for us too; not for all in the same moment, though.
            if unreachable && tokio::time::timeout(wait, found.changed()).await.is_ok() {
                backoff.reset();
                self.wait(Duration::from_millis(200).mul_f64(chance)).await;
            } else if !unreachable {
                self.wait(wait).await;
            }
        }
    }

    async fn wait(&self, time: Duration) {
        if !time.is_zero() {
            tokio::time::sleep(time).await;
        }
    }

    /// Waits, unless it is heard sooner that CRDs have changed; true in that case.
    async fn until_definitions_change(&mut self, wait: Duration) -> bool {
        // If nobody can tell any more, time decides.
        tokio::time::timeout(wait, self.definitions.changed())
            .await
            .is_ok_and(|told| told.is_ok())
    }

    fn path(&self) -> &str {
        self.place.paths.get(self.path).map_or("", String::as_str)
    }

    fn address(&self, query: &[(&str, &str)]) -> String {
        let mut address = self.path().to_owned();
        let fields = self.place.field_selector.as_deref();
        let labels = self.place.label_selector.as_deref();
        let all = query
            .iter()
            .copied()
            .chain(fields.map(|selector| ("fieldSelector", selector)))
            .chain(labels.map(|selector| ("labelSelector", selector)));
        for (index, (key, value)) in all.enumerate() {
            address.push(if index == 0 { '?' } else { '&' });
            address.push_str(key);
            address.push('=');
            address.push_str(&escape(value));
        }
        address
    }

    /// Time-outs of watches differ, so that they do not all end together.
    fn watch_seconds(&self) -> String {
        let seconds = self.timing.watch.as_secs_f64() * rand::rng().random_range(1.0..2.0);
        format!("{}", seconds.ceil())
    }

    /// Watches on, unless the server turns out to be in the past.
    async fn resume(&mut self, client: &kube::Client, version: u64) -> Result<Infallible, End> {
        if self.in_doubt {
            let newest = self.newest(client).await?;
            if newest < self.ages.newest() {
                return Err(End::Older(newest));
            }
            self.in_doubt = false;
        }
        self.watch(client, version).await
    }

    /// The newest version that the server has, as the shortest list tells it.
    async fn newest(&self, client: &kube::Client) -> Result<u64, End> {
        let address = self.address(&[("limit", "1")]);
        match wire::list(client, &address, self.place.accept.list, false).await? {
            Listing::Json(text) => Ok(wire::page(&text)?.version),
            Listing::Proto(mut items) => {
                while items.next(self.timing.silence).await?.is_some() {}
                Ok(items.end()?.0)
            }
        }
    }

    async fn list_and_watch(&mut self, client: &kube::Client) -> Result<Infallible, End> {
        if self.streams {
            match self.stream(client).await {
                Err(End::Fault(Fault::Unsupported(reason))) => {
                    tracing::debug!(target: "kubernetes", path = self.path(), reason, "lists are not streamed");
                    self.streams = false;
                }
                other => return other,
            }
        }
        let version = self.list(client).await?;
        self.watch(client, version).await
    }

    /// A list in pages; they are all of one version.
    async fn list(&mut self, client: &kube::Client) -> Result<u64, End> {
        self.keep.begin();
        let (limit, mut token) = (self.place.page.to_string(), String::new());
        loop {
            let mut query = vec![("limit", limit.as_str())];
            if !token.is_empty() {
                query.push(("continue", token.as_str()));
            }
            let address = self.address(&query);
            let (accept, long) = (self.place.accept.list, self.place.long);
            let (version, next) = match wire::list(client, &address, accept, long).await? {
                Listing::Json(text) => {
                    let page = wire::page(&text)?;
                    for object in &page.items {
                        self.keep.item(object)?;
                    }
                    (page.version, page.next)
                }
                Listing::Proto(mut items) => {
                    while let Some(object) = items.next(self.timing.silence).await? {
                        self.keep.item(&object)?;
                    }
                    items.end()?
                }
            };
            if next.is_empty() {
                self.listed(version).await?;
                return Ok(version);
            }
            token = next;
        }
    }

    /// A complete list replaces what is known, if it is not from the past.
    async fn listed(&mut self, version: u64) -> Result<(), End> {
        let newest = self.ages.newest();
        match self.ages.judge(version, Instant::now()) {
            Verdict::Older => return Err(End::Older(version)),
            Verdict::Restored => tracing::warn!(
                target: "kubernetes",
                "{} is at version {version} where {newest} was seen, and stays there: the cluster seems to have been restored \
                 from a backup, so what it says now counts",
                self.path()
            ),
            Verdict::Current => {}
        }
        self.keep.complete();
        self.live(version).await;
        Ok(())
    }

    /// Everything up to `version` is known.
    async fn live(&mut self, version: u64) {
        self.link.note(true);
        self.progress = true;
        self.ages.saw(version);
        self.resume = Some(version);
        self.keep.report(Condition::Live);
        self.keep.flush().await;
    }

    /// A watch that begins with everything there is.
    async fn stream(&mut self, client: &kube::Client) -> Result<Infallible, End> {
        let seconds = self.watch_seconds();
        let address = self.address(&[
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("sendInitialEvents", "true"),
            ("resourceVersionMatch", "NotOlderThan"),
            ("timeoutSeconds", &seconds),
        ]);
        let mut events = Events::open(client, &address, self.place.accept.event).await?;
        self.keep.begin();
        while let Some(bytes) = events.next(self.timing.silence).await? {
            match wire::event(events.form(), &bytes)? {
                Event::Upsert(object) => self.keep.item(&object)?,
                Event::Bookmark {
                    version,
                    initial: true,
                } => {
                    self.listed(version).await?;
                    return self.events(&mut events).await;
                }
                Event::Bookmark { .. } => {}
                Event::Delete(_) => {
                    let reason = "a deletion in the middle of a list".to_owned();
                    return Err(Fault::Failed(reason).into());
                }
            }
        }
        Err(Fault::Failed("the list ended early".to_owned()).into())
    }

    /// A watch that begins after `version`.
    async fn watch(&mut self, client: &kube::Client, version: u64) -> Result<Infallible, End> {
        let (version, seconds) = (version.to_string(), self.watch_seconds());
        let address = self.address(&[
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", &version),
            ("timeoutSeconds", &seconds),
        ]);
        let mut events = Events::open(client, &address, self.place.accept.event).await?;
        self.answered = true;
        self.link.note(true);
        self.keep.report(Condition::Live);
        self.keep.flush().await;
        self.events(&mut events).await
    }

    async fn events(&mut self, events: &mut Events) -> Result<Infallible, End> {
        while let Some(bytes) = events.next(self.timing.silence).await? {
            let event = wire::event(events.form(), &bytes)?;
            let version = match &event {
                Event::Bookmark { version, .. } => *version,
                Event::Upsert(object) | Event::Delete(object) => object.head()?.version,
            };
            if version < self.ages.newest() {
                return Err(End::Older(version));
            }
            match event {
                Event::Upsert(object) => self.keep.upsert(&object)?,
                Event::Delete(object) => self.keep.delete(&object)?,
                Event::Bookmark { .. } => {}
            }
            self.progress = true;
            self.ages.saw(version);
            self.resume = Some(version);
            if !events.has_more() {
                self.keep.flush().await;
            }
        }
        Err(End::Closed)
    }
}

/// Text as part of a query.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_resource_is_believed_if_its_definition_is_missing() {
        let known = Definitions::Known(Arc::new(BTreeSet::from(["a.x".to_owned()])), 1);
        assert_eq!(known.patience("b.x", true), Duration::ZERO);
        assert_eq!(known.patience("a.x", false), DENIED_FOR);
        assert_eq!(Definitions::Asked.patience("a.x", false), DENIED_FOR);
        assert_eq!(Definitions::Unknown.patience("a.x", true), GONE_FOR);
        assert_eq!(Definitions::Unknown.patience("a.x", false), Duration::ZERO);
    }

    #[test]
    fn queries_are_escaped() {
        assert_eq!(escape("type!=a/b,x=1"), "type%21%3Da%2Fb%2Cx%3D1");
        assert_eq!(escape("istio-1.2_x~"), "istio-1.2_x~");
    }
}
