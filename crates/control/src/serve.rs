//! `pilotfish serve`: opens the ports, starts the tasks, and stops them in order.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use pilotfish_config::Diagnostic;
use pilotfish_sources::files::{self, DirectorySource};
use pilotfish_sources::kube::Register;
use pilotfish_xds::{Limits, NewStreams, Server};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::address::Address;
use crate::audit;
use crate::findings::Findings;
use crate::http::{self, Pages};
use crate::kubernetes::Kubernetes;
use crate::logging::Logging;
use crate::metrics::Metrics;
use crate::nodes::Nodes;
use crate::packing;
use crate::plane::{FIRST_SNAPSHOT, Plane};
use crate::questions::Questions;
use crate::readiness::Readiness;
use crate::scribe::{Desk, Judgement, Scribe};
use crate::settings::{Push, Settings};
use crate::tls::{self, Certificate};
use crate::tokens::Tokens;
use crate::version;
use crate::workloads::Workloads;
use crate::writer::{Input, Origin, Writer};

/// How long nothing may happen before the configuration is analysed: while changes come in, pushes have the processor.
const QUIET: Duration = Duration::from_secs(2);
/// How often it is analysed if something always happens.
const FINDINGS_AT_LEAST_EVERY: Duration = Duration::from_secs(30);

/// Serves until told to stop. Returns an error if it cannot start or cannot go on.
pub(crate) async fn run(settings: Settings, logging: Logging, started: Instant) -> Result<()> {
    tracing::info!("{} starting", version::line());
    for note in &settings.notes {
        tracing::warn!("{note}");
    }
    // Signals are caught before the first port opens, so that nobody is killed half started.
    let mut stop = Stop::new()?;
    let ports = Ports::open(&settings).await?;
    let metrics = Arc::new(Metrics::new(started));
    let plan = settings.plan();
    let waits = plan.waits_for().chain([FIRST_SNAPSHOT]);
    let readiness = Readiness::waiting_for(waits.map(str::to_owned));
    let nodes = Arc::new(Nodes::new(Arc::clone(&metrics)));
    let plane = Arc::new(Plane::new(
        settings.mesh.clone(),
        readiness,
        metrics,
        Arc::clone(&nodes),
        settings.treatment.clone(),
    ));
    let server = Server::new(
        Arc::clone(&plane),
        limits(&settings.push, settings.shutdown),
        Arc::clone(&nodes) as _,
    );
    let (inputs, received) = mpsc::channel(16);
    let kubernetes = settings.kubernetes.as_ref().map(Kubernetes::reading);
    let cluster = settings.kubernetes.as_ref();
    let writing = cluster.and_then(|cluster| cluster.writing.clone());
    let desk = writing.as_ref().map(|_| Desk::default());
    let register = writing.as_ref().map(|_| Register::default());
    let judgement = watch::Sender::<Arc<Judgement>>::default();
    let pages = Pages {
        plane: Arc::clone(&plane),
        server: server.clone(),
        nodes,
        logging,
        inputs: inputs.clone(),
        debug: settings.debug,
        kubernetes: kubernetes.clone(),
        desk: desk.clone(),
    };

    let questions = Questions::new(pages.clone(), &settings.namespace, &settings.instance);
    server.answer_questions(Arc::new(questions));

    // Tasks that must not end while the server runs, and those that end when it stops.
    let mut vital: JoinSet<Result<()>> = JoinSet::new();
    vital.spawn(Writer::new(Arc::clone(&plane), &plan, started).run(received));
    start_sources(&settings, &inputs, &mut vital)?;
    let mut serving = JoinSet::new();
    let (mut registry, mut tokens, leader) = (None, None, desk.clone());
    if let (Some(cluster), Some(reading)) = (cluster, kubernetes) {
        let others = reading.clusters.clone();
        let link = cluster
            .start(reading, register.clone(), &inputs, &mut vital)
            .await?;
        registry = Some(link.clone());
        let (audiences, own) = (cluster.audiences.clone(), &cluster.others.own);
        let elsewhere = move |name: &str| others.link(name).map(|link| Box::new(link) as _);
        tokens = Some(Arc::new(Tokens::new(
            link.clone(),
            audiences,
            own,
            settings.treatment.aliases.clone(),
            elsewhere,
        )));
        if let (Some(writing), Some(desk), Some(register)) = (writing, desk, register.clone()) {
            let scribe = Scribe {
                link,
                plane: Arc::clone(&plane),
                register,
                judged: judgement.subscribe(),
                writing,
                desk,
            };
            let (namespace, revision) = (cluster.namespace.clone(), cluster.revision.clone());
            let told = stop.told.subscribe();
            serving.spawn(async move { scribe.run(&namespace, &revision, told).await });
        }
    }
    if settings.enrolment.registers || settings.enrolment.checks_health {
        let metrics = Arc::clone(&plane.metrics);
        let workloads = Workloads::new(settings.enrolment.clone(), &settings.namespace, metrics);
        plane.register_workloads(workloads.clone());
        let (plane, inputs, told) = (Arc::clone(&plane), inputs.clone(), stop.told.subscribe());
        serving.spawn(workloads.run(plane, registry, leader, inputs, told));
    }
    let nodes = Arc::clone(&pages.nodes);
    vital.spawn(report(Arc::clone(&plane), nodes, register, judgement));
    if let Some(interval) = settings.audit_interval {
        vital.spawn(audit::run(Arc::clone(&plane), interval));
    }
    vital.spawn(packing::run(Arc::clone(&plane), server.clone()));
    ports.serve(&server, &pages, tokens, &stop, &mut serving);
    drop((inputs, pages));

    let ended = tokio::select! {
        name = stop.requested() => { tracing::info!("stopping on {name}"); Ok(()) }
        Some(ended) = vital.join_next() => Err(why(ended)),
        Some(ended) = serving.join_next(), if !serving.is_empty() => Err(why(ended)),
    };
    plane.readiness.stop();
    stop.tell();
    let drained = tokio::time::timeout(settings.shutdown, async {
        while serving.join_next().await.is_some() {}
    })
    .await;
    if drained.is_err() {
        tracing::warn!(
            "connections did not close within {:?}; stopping all the same",
            settings.shutdown
        );
    }
    tracing::info!("stopped");
    ended
}

fn why(ended: Result<Result<()>, tokio::task::JoinError>) -> anyhow::Error {
    match ended {
        Ok(Ok(())) => anyhow!("a part of the server ended by itself"),
        Ok(Err(error)) => error,
        Err(error) => anyhow!("a part of the server failed: {error}"),
    }
}

/// The order to stop: comes as a signal, is passed on to whoever serves.
struct Stop {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    told: watch::Sender<bool>,
}

impl Stop {
    fn new() -> Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("cannot catch SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("cannot catch SIGINT")?,
            told: watch::Sender::new(false),
        })
    }

    async fn requested(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }

    fn tell(&self) {
        self.told.send_replace(true);
    }

    /// Resolves when it is time to stop.
    fn told(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let mut told = self.told.subscribe();
        async move {
            // An error means that the sender is gone, and with it the server.
            let _ = told.wait_for(|told| *told).await;
        }
    }
}

/// Open ports that nobody serves yet.
struct Ports {
    grpc: Option<TcpListener>,
    secure: Option<(TcpListener, Certificate)>,
    http: Option<TcpListener>,
    monitoring: Option<TcpListener>,
}

impl Ports {
    async fn open(settings: &Settings) -> Result<Self> {
        async fn one(address: Option<&Address>, purpose: &str) -> Result<Option<TcpListener>> {
            match address {
                Some(address) => {
                    let listener = address.listen(purpose).await?;
                    tracing::info!("{purpose} on {}", listener.local_addr()?);
                    Ok(Some(listener))
                }
                None => Ok(None),
            }
        }
        let secure = match &settings.secure {
            Some(secure) => {
                let certificate = Certificate::load(secure.clone())?;
                let listener = one(Some(&secure.address), "xDS over TLS").await?;
                listener.map(|listener| (listener, certificate))
            }
            None => None,
        };
        Ok(Self {
            grpc: one(settings.grpc.as_ref(), "xDS").await?,
            secure,
            http: one(settings.http.as_ref(), "HTTP (/ready, /debug)").await?,
            monitoring: one(
                settings.monitoring.as_ref(),
                "monitoring (/metrics, /debug, /scopez)",
            )
            .await?,
        })
    }

    fn serve(
        self,
        server: &Server<Plane>,
        pages: &Pages,
        tokens: Option<Arc<Tokens>>,
        stop: &Stop,
        serving: &mut JoinSet<Result<()>>,
    ) {
        if let Some(listener) = self.grpc {
            let (server, told) = (server.clone(), stop.told());
            serving.spawn(async move {
                server.serve(listener, told).await;
                Ok(())
            });
        }
        if let Some((listener, certificate)) = self.secure {
            let (server, told) = (server.clone(), stop.told());
            serving.spawn(async move {
                tls::serve(server, listener, certificate, tokens, told).await;
                Ok(())
            });
        }
        if let Some(listener) = self.http {
            let (pages, told) = (pages.clone(), stop.told());
            serving.spawn(async move {
                http::serve_http(listener, pages, told)
                    .await
                    .context("the HTTP port failed")
            });
        }
        if let Some(listener) = self.monitoring {
            let (pages, told) = (pages.clone(), stop.told());
            serving.spawn(async move {
                http::serve_monitoring(listener, pages, told)
                    .await
                    .context("the monitoring port failed")
            });
        }
    }
}

fn limits(push: &Push, shutdown: Duration) -> Limits {
    let defaults = Limits::default();
    Limits {
        push_throttle: push.concurrent,
        new_streams: push
            .streams_per_second
            .map_or(NewStreams::AsTheyCost, NewStreams::PerSecond),
        max_concurrent_streams: push.max_streams,
        send_timeout: push.send_timeout.unwrap_or(defaults.send_timeout),
        ack_timeout: push.flow_control_timeout,
        max_age: push.max_connection_age,
        max_receive_bytes: push.max_request_bytes,
        keepalive_interval: push.keepalive_interval,
        keepalive_timeout: push.keepalive_timeout,
        drain_period: (shutdown / 2).min(defaults.drain_period),
        drain_grace: (shutdown / 3).min(defaults.drain_grace),
        ..defaults
    }
}

/// Starts reading files. Each source passes on what it learns; the writer hears them all in one queue.
fn start_sources(
    settings: &Settings,
    inputs: &mpsc::Sender<Input>,
    vital: &mut JoinSet<Result<()>>,
) -> Result<()> {
    for dir in &settings.config_dirs {
        tracing::info!(target: "file", "reading {}", dir.display());
    }
    let options = files::Options::default();
    if !settings.config_dirs.is_empty() {
        let source = DirectorySource::new(settings.config_dirs.clone(), options.clone())?;
        let (batches, received) = mpsc::channel(4);
        vital.spawn(async move {
            source
                .run(batches)
                .await
                .context("reading the configuration directories failed")
        });
        vital.spawn(pass_on(received, inputs.clone(), |batch| {
            Input::Objects(Origin::Files, batch)
        }));
    }

    for (what, path) in [
        ("mesh configuration", &settings.mesh_config),
        ("networks", &settings.mesh_networks),
    ] {
        if let Some(path) = path {
            tracing::info!(target: "file", "reading {what} from {}", path.display());
        }
    }
    let (mesh, networks) = (settings.mesh_config.clone(), settings.mesh_networks.clone());
    if mesh.is_none() && networks.is_none() {
        if settings.kubernetes.is_none() {
            // Nothing to watch: the defaults are in effect.
            let inputs = inputs.clone();
            tokio::spawn(async move {
                inputs
                    .send(Input::Mesh(Origin::Files, Box::default()))
                    .await
            });
        }
        return Ok(());
    }
    let (updates, received) = mpsc::channel(4);
    vital.spawn(async move {
        files::watch_mesh(mesh, networks, options, updates)
            .await
            .context("reading the mesh configuration failed")
    });
    vital.spawn(pass_on(received, inputs.clone(), |update| {
        Input::Mesh(Origin::Files, Box::new(update))
    }));
    Ok(())
}

pub(crate) async fn pass_on<T: Send + 'static>(
    mut from: mpsc::Receiver<T>,
    to: mpsc::Sender<Input>,
    wrap: fn(T) -> Input,
) -> Result<()> {
    while let Some(item) = from.recv().await {
        if to.send(wrap(item)).await.is_err() {
            break;
        }
    }
    // Whoever sent says why it ended; that is the better message.
    std::future::pending().await
}

/// Logs findings as they appear, and passes them on to whoever writes them to the cluster, after a quiet time and only if something happened: analysis takes a moment, findings of
/// translation come up when proxies ask, and gathering them takes locks that streams need.
async fn report(
    plane: Arc<Plane>,
    nodes: Arc<Nodes>,
    register: Option<Register>,
    judgement: watch::Sender<Arc<Judgement>>,
) -> Result<()> {
    let mut findings = Findings::default();
    let mut tick = tokio::time::interval(QUIET);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut reported, mut seen, mut was_ready) = (None, None, false);
    let mut since = tokio::time::Instant::now();
    loop {
        tick.tick().await;
        let now = Some((plane.input_version(), nodes.pushes()));
        if now == reported {
            continue;
        }
        if seen == reported {
            since = tokio::time::Instant::now();
        }
        // The first look does not wait: whoever starts a server wants to know.
        let first = !was_ready && plane.readiness.check().is_ok();
        was_ready |= first;
        let quiet = first || now == seen;
        seen = now;
        if !quiet && since.elapsed() < FINDINGS_AT_LEAST_EVERY {
            continue;
        }
        reported = now;
        let standings = register.as_ref().map(Register::all).unwrap_or_default();
        let current = gather(&plane).await?;
        if register.is_some() {
            let number = judgement.borrow().number + 1;
            judgement.send_replace(Arc::new(Judgement {
                number,
                findings: current.clone(),
                standings,
            }));
        }
        plane
            .metrics
            .invalid
            .set(i64::try_from(current.len()).unwrap_or(i64::MAX));
        findings.report(current);
    }
}

/// Everything that is wrong, found by a thread that nobody else waits for.
pub(crate) async fn gather(plane: &Arc<Plane>) -> Result<Vec<Diagnostic>> {
    let plane = Arc::clone(plane);
    tokio::task::spawn_blocking(move || plane.diagnostics())
        .await
        .context("gathering findings failed")
}
