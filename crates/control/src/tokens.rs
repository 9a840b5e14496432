//! Tokens of service accounts, which Istio's agents and istioctl show instead of a certificate. The API server says whose
//! they are (TokenReview).
//!
//! A token is neither kept nor shown: what the server said of it is remembered for a moment, under a hash of it. A token that
//! the server does not accept is refused, and so is every token while the server cannot be asked. Who says to be of another
//! cluster is asked about there; of one that is not read, every token is refused.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use pilotfish_mesh::Text;
use pilotfish_sources::kube::{Link, Refusal};
use ring::digest::{Context, SHA256};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tonic::Status;

use crate::identity::Identity;
use crate::settings::Aliases;

const PATH: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
/// Names the cluster of the token, as agents do.
const CLUSTER: &str = "clusterid";
/// How long a review may take, and how long it may wait for its turn.
const PATIENCE: Duration = Duration::from_secs(10);
/// Reviews at a time.
const REVIEWS: usize = 16;
/// How long an answer counts: a token that is revoked is good for so long, and a storm of streams asks once.
const ACCEPTED_FOR: Duration = Duration::from_secs(30);
const REFUSED_FOR: Duration = Duration::from_secs(5);
/// Answers that are remembered at most.
const REMEMBERED: usize = 10_000;
/// How often the log says that nobody can be asked.
const COMPLAIN_EVERY: Duration = Duration::from_secs(10);

type Reviewing<'a> = Pin<Box<dyn Future<Output = Result<Value, Refusal>> + Send + 'a>>;

/// Whoever knows whose a token is.
pub(crate) trait Reviewer: Send + Sync {
    /// What becomes of a TokenReview.
    fn review(&self, review: Value) -> Reviewing<'_>;
}

impl Reviewer for Link {
    fn review(&self, review: Value) -> Reviewing<'_> {
        Box::pin(async move { self.create(PATH, &review, PATIENCE).await })
    }
}

/// What the server says of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    Account(Identity),
    Refused(Arc<str>),
}

type Hash = [u8; 32];

/// Finds who knows the tokens of another cluster, if it is read.
type Elsewhere = dyn Fn(&str) -> Option<Box<dyn Reviewer>> + Send + Sync;

#[derive(Default)]
struct Memory {
    /// Answers, and until when they count.
    answers: HashMap<Hash, (Instant, Verdict)>,
    complained: Option<Instant>,
}

/// Knows whose tokens are.
pub(crate) struct Tokens {
    reviewer: Box<dyn Reviewer>,
    /// A token must be meant for one of these.
    audiences: Vec<String>,
    /// The name of the cluster whose server is asked.
    cluster: String,
    /// Under which other names clusters may be named.
    aliases: Aliases,
    elsewhere: Box<Elsewhere>,
    turns: Semaphore,
    /// The same for other clusters, whose servers may be slow: who belongs here does not wait for them.
    turns_elsewhere: Semaphore,
    memory: Mutex<Memory>,
}

impl Tokens {
    pub(crate) fn new(
        reviewer: impl Reviewer + 'static,
        audiences: Vec<String>,
        cluster: &str,
        aliases: Aliases,
        elsewhere: impl Fn(&str) -> Option<Box<dyn Reviewer>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            elsewhere: Box::new(elsewhere),
            reviewer: Box::new(reviewer),
            audiences,
            cluster: cluster.to_owned(),
            aliases,
            turns: Semaphore::new(REVIEWS),
            turns_elsewhere: Semaphore::new(REVIEWS),
            memory: Mutex::default(),
        }
    }

    /// Whose token comes with a request; `None` if none does.
    pub(crate) async fn identify(&self, headers: &HeaderMap) -> Result<Option<Identity>, Status> {
        let Some(token) = bearer(headers) else {
            return Ok(None);
        };
        let named = cluster(headers).map(|name| self.aliases.get(name).unwrap_or(name));
        let other = named.filter(|name| *name != self.cluster);
        let elsewhere = other.map(|name| (name, (self.elsewhere)(name)));
        let (name, reviewer, turns) = match &elsewhere {
            None => ("", &*self.reviewer, &self.turns),
            Some((name, Some(reviewer))) => (*name, &**reviewer, &self.turns_elsewhere),
            Some((name, None)) => {
                let name: String = name.chars().take(100).collect();
                return Err(Status::unauthenticated(format!(
                    "authentication failed: the token is said to be of cluster {name:?}, which is not read here"
                )));
            }
        };
        match self
            .verdict(hash(name, token), token, reviewer, turns)
            .await?
        {
            Verdict::Account(identity) => Ok(Some(identity)),
            Verdict::Refused(reason) => Err(Status::unauthenticated(format!(
                "authentication failed: the token is not accepted: {reason}"
            ))),
        }
    }

    async fn verdict(
        &self,
        hash: Hash,
        token: &str,
        reviewer: &dyn Reviewer,
        turns: &Semaphore,
    ) -> Result<Verdict, Status> {
        if let Some(known) = self.lock().recall(&hash) {
            return Ok(known);
        }
        let turn = tokio::time::timeout(PATIENCE, turns.acquire()).await;
        let Ok(Ok(_turn)) = turn else {
            return Err(Status::unavailable("too many tokens wait to be reviewed"));
        };
        // Another stream may have asked while this one waited.
        if let Some(known) = self.lock().recall(&hash) {
            return Ok(known);
        }
        let review = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": self.audiences},
        });
        let verdict = match reviewer.review(review).await {
            Ok(answer) => read(&answer, &self.audiences),
            Err(Refusal::Invalid(_)) => Verdict::Refused("it is no token".into()),
            Err(refusal) => {
                self.complain(refusal.reason());
                return Err(Status::unavailable(
                    "the API server cannot be asked whose token this is",
                ));
            }
        };
        self.lock().remember(hash, verdict.clone());
        Ok(verdict)
    }

    fn complain(&self, reason: &str) {
        let now = Instant::now();
        let mut memory = self.lock();
        let last = memory.complained;
        if last.is_none_or(|last| now - last >= COMPLAIN_EVERY) {
            memory.complained = Some(now);
            drop(memory);
            tracing::warn!(target: "ads", "tokens cannot be reviewed, who shows one is turned away: {reason}");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Memory {
    fn recall(&self, hash: &Hash) -> Option<Verdict> {
        let (until, verdict) = self.answers.get(hash)?;
        (Instant::now() < *until).then(|| verdict.clone())
    }

    /// When there is no room, what is refused gives way to what is accepted: anybody can make up tokens.
    fn remember(&mut self, hash: Hash, verdict: Verdict) {
        let now = Instant::now();
        if self.answers.len() >= REMEMBERED {
            self.answers.retain(|_, (until, _)| now < *until);
        }
        let is_account = |verdict: &Verdict| matches!(verdict, Verdict::Account(_));
        if self.answers.len() >= REMEMBERED && is_account(&verdict) {
            self.answers.retain(|_, (_, verdict)| is_account(verdict));
        }
        if self.answers.len() < REMEMBERED {
            let time = if is_account(&verdict) {
                ACCEPTED_FOR
            } else {
                REFUSED_FOR
            };
            self.answers.insert(hash, (now + time, verdict));
        }
    }
}

/// What an answer is remembered under. What one cluster says of a token counts for no other.
fn hash(cluster: &str, token: &str) -> Hash {
    let mut context = Context::new(&SHA256);
    for part in [cluster, "\0", token] {
        context.update(part.as_bytes());
    }
    let mut hash = Hash::default();
    hash.copy_from_slice(context.finish().as_ref());
    hash
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    values.find_map(|value| value.to_str().ok()?.strip_prefix("Bearer "))
}

/// The cluster that a caller names. Who names several, or none, is taken to be in the one whose server is asked, as by istiod.
fn cluster(headers: &HeaderMap) -> Option<&str> {
    let mut names = headers.get_all(CLUSTER).iter();
    let (first, more) = (names.next()?, names.next());
    let name = first.to_str().ok()?;
    (more.is_none() && !name.is_empty()).then_some(name)
}

/// What an answered TokenReview says. The server must have compared audiences: one that knows none names none.
fn read(review: &Value, audiences: &[String]) -> Verdict {
    let status = &review["status"];
    let refused = |reason: &str| Verdict::Refused(reason.into());
    if let Some(error) = status["error"].as_str().filter(|error| !error.is_empty()) {
        return refused(&error.chars().take(300).collect::<String>());
    }
    if status["authenticated"] != true {
        return refused("nobody knows it");
    }
    let texts = |list: &'_ Value| -> Vec<String> {
        let all = list.as_array().into_iter().flatten();
        all.filter_map(|text| text.as_str().map(str::to_owned))
            .collect()
    };
    let meant_for = texts(&status["audiences"]);
    if !meant_for.iter().any(|name| audiences.contains(name)) {
        return refused("it is meant for others");
    }
    let user = &status["user"];
    let groups = texts(&user["groups"]);
    let name: Vec<&str> = user["username"]
        .as_str()
        .unwrap_or_default()
        .split(':')
        .collect();
    match name.as_slice() {
        ["system", "serviceaccount", namespace, account]
            if !namespace.is_empty()
                && !account.is_empty()
                && groups.iter().any(|group| group == "system:serviceaccounts") =>
        {
            Verdict::Account(Identity {
                namespace: Text::from(*namespace),
                service_account: Text::from(*account),
            })
        }
        _ => refused("it is not that of a service account"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tonic::Code;

    use super::*;

    fn review(username: &str, audiences: &[&str]) -> Value {
        json!({"status": {
            "authenticated": true,
            "audiences": audiences,
            "user": {"username": username, "groups": ["system:serviceaccounts", "system:authenticated"]},
        }})
    }

    #[test]
    fn whose_a_token_is() {
        let ours = ["istio-ca".to_owned(), "other".to_owned()];
        let good = review("system:serviceaccount:shop:web", &["other"]);
        let identity = Identity {
            namespace: Text::from("shop"),
            service_account: Text::from("web"),
        };
        assert_eq!(read(&good, &ours), Verdict::Account(identity));
        let mut unknown = good.clone();
        unknown["status"]["authenticated"] = json!(false);
        let mut failed = good.clone();
        failed["status"]["error"] = json!("expired");
        let mut person = good.clone();
        person["status"]["user"]["groups"] = json!(["system:authenticated"]);
        for (bad, why) in [
            (json!({}), "nobody"),
            (unknown, "nobody"),
            (failed, "expired"),
            (person, "service account"),
            (review("system:serviceaccount:shop:web", &[]), "others"),
            (review("system:serviceaccount:shop:web", &["x"]), "others"),
            (review("system:serviceaccount:shop:", &["other"]), "service"),
            (review("system:serviceaccount:a:b:c", &["other"]), "service"),
            (review("kubernetes-admin", &["other"]), "service account"),
        ] {
            let verdict = read(&bad, &ours);
            let refused = matches!(&verdict, Verdict::Refused(reason) if reason.contains(why));
            assert!(refused, "{bad}: {verdict:?}");
        }
    }

    /// Knows one token, and can be away.
    #[derive(Clone, Default)]
    struct Fake {
        asked: Arc<AtomicUsize>,
        away: Arc<Mutex<Option<Refusal>>>,
    }

    impl Reviewer for Fake {
        fn review(&self, asked: Value) -> Reviewing<'_> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            assert_eq!(asked["spec"]["audiences"], json!(["istio-ca"]));
            let away = self.away.lock().unwrap().clone();
            Box::pin(async move {
                match away {
                    Some(refusal) => Err(refusal),
                    None if asked["spec"]["token"] == "good" => {
                        Ok(review("system:serviceaccount:shop:web", &["istio-ca"]))
                    }
                    None => Ok(json!({"status": {"error": "unknown"}})),
                }
            })
        }
    }

    fn tokens() -> (Tokens, Fake) {
        let fake = Fake::default();
        let audiences = vec!["istio-ca".to_owned()];
        let far = fake.clone();
        let elsewhere = move |name: &str| {
            let far: Box<dyn Reviewer> = Box::new(far.clone());
            (name == "far").then_some(far)
        };
        let aliases = ["mine=own", "away=far"].map(str::to_owned);
        let aliases = Aliases::parse(&aliases).unwrap();
        let tokens = Tokens::new(fake.clone(), audiences, "own", aliases, elsewhere);
        (tokens, fake)
    }

    fn headers(all: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in all {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[tokio::test]
    async fn answers_are_remembered_without_the_token() {
        let (tokens, fake) = tokens();
        let asked = || fake.asked.load(Ordering::Relaxed);
        let basic = ("authorization", "Basic x");
        let good = headers(&[basic, ("authorization", "Bearer good")]);
        for _ in 0..3 {
            let found = tokens.identify(&good).await.unwrap().unwrap();
            assert_eq!(
                (&*found.namespace, &*found.service_account),
                ("shop", "web")
            );
        }
        assert_eq!(asked(), 1);
        let bad = headers(&[("authorization", "Bearer bad")]);
        for _ in 0..3 {
            let refused = tokens.identify(&bad).await.unwrap_err();
            assert_eq!(refused.code(), Code::Unauthenticated);
            assert!(refused.message().contains("unknown") && !refused.message().contains("bad"));
        }
        assert_eq!(asked(), 2);
        // What is past counts no more.
        for (until, _) in tokens.lock().answers.values_mut() {
            *until = Instant::now();
        }
        assert!(tokens.identify(&good).await.is_ok() && asked() == 3);
        // Nobody is asked about nothing.
        for none in [headers(&[]), headers(&[basic])] {
            assert_eq!(tokens.identify(&none).await.unwrap(), None);
        }
        let token = ("authorization", "Bearer good");
        let here = headers(&[token, ("clusterid", "own")]);
        let alias = headers(&[token, ("clusterid", "mine")]);
        let several = headers(&[token, ("clusterid", "far"), ("clusterid", "x")]);
        for own in [here, alias, several] {
            assert!(tokens.identify(&own).await.unwrap().is_some() && asked() == 3);
        }
        // What one cluster says counts for no other.
        for name in ["far", "far", "away"] {
            let elsewhere = headers(&[token, ("clusterid", name)]);
            assert!(tokens.identify(&elsewhere).await.unwrap().is_some() && asked() == 4);
        }
        // Of a cluster that is not read, it is refused unseen.
        let nowhere = headers(&[token, ("clusterid", "nowhere")]);
        let refused = tokens.identify(&nowhere).await.unwrap_err();
        assert_eq!((refused.code(), asked()), (Code::Unauthenticated, 4));
        assert!(refused.message().contains("nowhere") && !refused.message().contains("good"));
        // Who shows no token may say what he likes.
        let silent = headers(&[("clusterid", "nowhere")]);
        assert_eq!(tokens.identify(&silent).await.unwrap(), None);
    }

    #[tokio::test]
    async fn while_nobody_can_be_asked_nobody_is_accepted() {
        let (tokens, fake) = tokens();
        let good = headers(&[("authorization", "Bearer good")]);
        let set = |away| *fake.away.lock().unwrap() = away;
        for refusal in [
            Refusal::Failed("gone: 10.0.0.1".into()),
            Refusal::Forbidden("no".into()),
            Refusal::Busy("later".into(), None),
        ] {
            set(Some(refusal));
            let status = tokens.identify(&good).await.unwrap_err();
            assert_eq!(status.code(), Code::Unavailable);
            assert!(!status.message().contains("10.0.0.1"));
        }
        set(None);
        assert!(tokens.identify(&good).await.is_ok());
        set(Some(Refusal::Failed("gone".into())));
        assert!(tokens.identify(&good).await.is_ok(), "for a moment");
    }

    #[tokio::test(start_paused = true)]
    async fn reviews_wait_for_their_turn_but_not_for_ever() {
        let (tokens, _) = tokens();
        let turns = tokens.turns.acquire_many(REVIEWS as u32).await.unwrap();
        let good = headers(&[("authorization", "Bearer good")]);
        let status = tokens.identify(&good).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
        drop(turns);
        assert!(tokens.identify(&good).await.is_ok());
    }

    #[test]
    fn made_up_tokens_leave_room_for_others() {
        let mut memory = Memory::default();
        let key = |n: usize| hash("", &n.to_string());
        let refused = || Verdict::Refused("x".into());
        for n in 0..REMEMBERED + 10 {
            memory.remember(key(n), refused());
        }
        assert_eq!(memory.answers.len(), REMEMBERED);
        let account = Verdict::Account(Identity {
            namespace: Text::from("shop"),
            service_account: Text::from("web"),
        });
        memory.remember(key(REMEMBERED + 1), account.clone());
        assert_eq!(memory.recall(&key(REMEMBERED + 1)), Some(account));
        assert_eq!(memory.answers.len(), 1);
    }
}
