//! One server, one crowd of proxies, one phase after the other.

use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::crowd::{Counts, Crowd, Meter, Waits};
use crate::limit::Recording;
use crate::mesh::{Change, Size};
use crate::place::Place;
use crate::report::{ByType, percentile};
use crate::server::{Launch, Server, Usage};
use crate::wire::Mode;

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The mesh.
    pub size: Size,
    /// Proxies that connect.
    pub proxies: usize,
    /// How they speak.
    pub mode: Mode,
    /// What is changed while they are connected.
    pub changes: Vec<Change>,
    /// How often each is made, where that is possible.
    pub repeats: usize,
    /// When a phase is over.
    pub waits: Waits,
}

/// What was measured of a phase. Figures are means of one change, delays are those of all.
#[derive(Clone, Debug, Serialize)]
pub struct Phase {
    /// `connect`, or the name of the change.
    pub name: &'static str,
    /// How often it was made.
    pub repeats: usize,
    /// Proxies that should be reached.
    pub expected: usize,
    /// Proxies that were, in the round with the fewest.
    pub reached: usize,
    /// From the change to the last message of a proxy: half of them,
    pub p50_ms: f64,
    /// 99 of 100,
    pub p99_ms: f64,
    /// all.
    pub max_ms: f64,
    /// Processor time of the server.
    pub cpu_ms: f64,
    /// Processor time of the proxies, which share the processors with it.
    pub client_cpu_ms: f64,
    /// Messages to all proxies.
    pub messages: ByType,
    /// Their kilobytes.
    pub kilobytes: ByType,
    /// Resident memory of the server at the end.
    pub rss_mb: f64,
    /// The most there was.
    pub peak_mb: f64,
    /// Streams that proxies opened again.
    pub reconnects: u64,
    /// Streams that ended before anything came.
    pub refused: u64,
}

/// What was measured of a server.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// Which server.
    pub server: String,
    /// The mesh.
    pub size: Size,
    /// Proxies.
    pub proxies: usize,
    /// How they spoke.
    pub mode: Mode,
    /// From the start of the process until it was ready.
    pub ready_ms: f64,
    /// Processor time until then.
    pub ready_cpu_ms: f64,
    /// Memory before anybody connected.
    pub idle_mb: f64,
    /// `connect` first, then the changes.
    pub phases: Vec<Phase>,
}

impl Phase {
    /// Whether everybody was reached and nobody refused. If not, its figures are of less work than they should be.
    pub fn is_complete(&self) -> bool {
        self.reached >= self.expected && self.refused == 0
    }
}

impl Run {
    /// A phase by its name.
    pub fn phase(&self, name: &str) -> Option<&Phase> {
        self.phases.iter().find(|p| p.name == name)
    }
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn mb(kilobytes: u64) -> f64 {
    kilobytes as f64 / 1024.0
}

/// What the server, the proxies and the wire had used at one time.
struct Snapshot {
    server: Usage,
    client: Usage,
    counts: Counts,
}

impl Snapshot {
    fn take(server: &Server, counts: Counts) -> Result<Self> {
        let used = server.usage();
        Ok(Self {
            server: used.with_context(|| format!("the server is gone\n{}", server.log_end()))?,
            client: Usage::of("self")?,
            counts,
        })
    }

    /// The phase between two times, in which `rounds` saw so many proxies reached after such delays.
    fn until(&self, end: &Self, name: &'static str, expected: usize, rounds: &[Round]) -> Phase {
        let repeats = rounds.len().max(1);
        let each = |total: f64| total / repeats as f64;
        let by_type = |of: &[u64; 5]| ByType(of.map(|total| each(total as f64)));
        let sent = end.counts.since(&self.counts);
        let mut kilobytes = by_type(&sent.bytes);
        kilobytes.0.iter_mut().for_each(|bytes| *bytes /= 1000.0);
        let mut delays: Vec<f64> = rounds
            .iter()
            .flat_map(|r| r.delays.iter().copied())
            .collect();
        delays.sort_by(f64::total_cmp);
        Phase {
            name,
            repeats,
            expected,
            reached: rounds.iter().map(|r| r.reached).min().unwrap_or(0),
            p50_ms: percentile(&delays, 50),
            p99_ms: percentile(&delays, 99),
            max_ms: percentile(&delays, 100),
            cpu_ms: each(ms(end.server.cpu.saturating_sub(self.server.cpu))),
            client_cpu_ms: each(ms(end.client.cpu.saturating_sub(self.client.cpu))),
            messages: by_type(&sent.messages),
            kilobytes,
            rss_mb: mb(end.server.rss_kb),
            peak_mb: mb(end.server.peak_kb),
            reconnects: sent.reconnects,
            refused: sent.refused,
        }
    }
}

struct Round {
    reached: usize,
    delays: Vec<f64>,
}

/// Connects everybody at once and waits until they have everything.
async fn connect(server: &Server, plan: &Plan) -> Result<(Phase, Crowd)> {
    let before = Snapshot::take(server, Counts::default())?;
    let crowd = Crowd::connect(server.grpc, plan.mode, plan.proxies, plan.size.namespaces)?;
    let start = crowd.began();
    crowd
        .settle(start, plan.proxies, Meter::is_synced, &plan.waits)
        .await;
    let after = Snapshot::take(server, crowd.counts())?;
    let round = Round {
        reached: crowd.count(Meter::is_synced),
        delays: crowd.delays(start),
    };
    let phase = before.until(&after, "connect", plan.proxies, &[round]);
    Ok((phase, crowd))
}

/// Makes a change as often as the plan says, each time when the last has settled.
///
/// Processor time is that of all rounds together: the kernel's ticks of 10 ms would hide a single small change.
async fn change(
    server: &Server,
    crowd: &Crowd,
    plan: &Plan,
    change: Change,
    place: &Place,
) -> Result<Phase> {
    let expected = crowd.count(|m| change.reaches(m.namespace));
    let repeats = if change.repeats() { plan.repeats } else { 1 };
    let before = Snapshot::take(server, crowd.counts())?;
    let mut rounds = Vec::new();
    for round in 0..repeats {
        let edit = change.edit(&plan.size, round);
        crowd.begin();
        let start = place.apply(&edit).context("changing the mesh")?;
        crowd
            .settle(start, expected, Meter::is_reached, &plan.waits)
            .await;
        rounds.push(Round {
            reached: crowd.count(Meter::is_reached),
            delays: crowd.delays(start),
        });
    }
    let after = Snapshot::take(server, crowd.counts())?;
    Ok(before.until(&after, change.name(), expected, &rounds))
}

/// Measures a server. The recording is what proxies got when they connected.
pub async fn measure(launch: &Launch, plan: &Plan) -> Result<(Run, Recording)> {
    let scratch = tempfile::tempdir()?;
    eprintln!(
        "{}: {} services, {} proxies, {}",
        launch.name, plan.size.services, plan.proxies, plan.mode
    );
    let place = if launch.reads_cluster() {
        eprintln!("  a cluster");
        Place::cluster(&plan.size).await?
    } else {
        Place::directory(&plan.size, scratch.path())?
    };
    let server = Server::start(launch, &place, scratch.path()).await?;
    let idle = server.usage()?;
    eprintln!("  connect");
    let (phase, crowd) = connect(&server, plan).await?;
    let recording = crowd.take_recording();
    let mut phases = vec![phase];
    for &kind in &plan.changes {
        eprintln!("  {}", kind.name());
        phases.push(change(&server, &crowd, plan, kind, &place).await?);
    }
    let run = Run {
        server: launch.name.clone(),
        size: plan.size,
        proxies: plan.proxies,
        mode: plan.mode,
        ready_ms: ms(server.ready),
        ready_cpu_ms: ms(idle.cpu),
        idle_mb: mb(idle.rss_kb),
        phases,
    };
    Ok((run, recording))
}

/// The same proxies connect to a server that only sends what was recorded.
pub async fn limit(recording: &Recording, plan: &Plan) -> Result<Phase> {
    let scratch = tempfile::tempdir()?;
    let file = scratch.path().join("recording");
    recording.write(&file)?;
    eprintln!("limit: the same bytes from memory");
    let server = Server::start_limit(&file, scratch.path()).await?;
    let (phase, _crowd) = connect(&server, plan).await?;
    Ok(phase)
}
