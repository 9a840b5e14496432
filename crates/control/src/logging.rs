//! The log: one line an event, in scopes whose levels can be changed while the server runs.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, reload};

use crate::settings;

/// A scope: its name, what it covers, and the targets whose events belong to it (with everything below them).
struct Scope {
    name: &'static str,
    about: &'static str,
    targets: &'static [&'static str],
}

const DEFAULT: &str = "default";

const SCOPES: &[Scope] = &[
    Scope {
        name: "ads",
        about: "xDS connections, requests and responses",
        targets: &["ads", "pilotfish_xds"],
    },
    Scope {
        name: "config",
        about: "objects, mesh configuration and what is wrong with them",
        targets: &["config", "pilotfish_config"],
    },
    Scope {
        name: DEFAULT,
        about: "everything without a scope of its own",
        targets: &["pilotfish"],
    },
    Scope {
        name: "file",
        about: "directories and files that are read and watched",
        targets: &["file", "pilotfish_sources"],
    },
    Scope {
        name: "http",
        about: "pages, metrics and probes",
        targets: &["http"],
    },
    Scope {
        name: "kube",
        about: "what is read from a Kubernetes cluster",
        targets: &["kubernetes"],
    },
    Scope {
        name: "model",
        about: "from objects to services and resources",
        targets: &[
            "model",
            "pilotfish_mesh",
            "pilotfish_lower",
            "pilotfish_emit",
        ],
    },
    Scope {
        name: "push",
        about: "changes, how they are merged and pushed",
        targets: &["push", "pilotfish_engine"],
    },
    Scope {
        name: "wle",
        about: "workloads that register themselves",
        targets: &["wle"],
    },
];

/// A level, with istiod's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    None,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl Level {
    fn parse(text: &str) -> Result<Self, String> {
        Ok(match text.to_ascii_lowercase().as_str() {
            "none" | "off" | "fatal" => Self::None,
            "error" => Self::Error,
            "warn" | "warning" => Self::Warn,
            "info" => Self::Info,
            "debug" => Self::Debug,
            "trace" => Self::Trace,
            _ => {
                return Err(format!(
                    "{text:?} is no level; use none, error, warn, info, debug or trace"
                ));
            }
        })
    }

    const fn filter(self) -> LevelFilter {
        match self {
            Self::None => LevelFilter::OFF,
            Self::Error => LevelFilter::ERROR,
            Self::Warn => LevelFilter::WARN,
            Self::Info => LevelFilter::INFO,
            Self::Debug => LevelFilter::DEBUG,
            Self::Trace => LevelFilter::TRACE,
        }
    }
}

/// The level of every scope: the default, and where it differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Levels {
    default: Level,
    scopes: BTreeMap<&'static str, Level>,
}

impl Levels {
    /// Reads `info`, `ads:debug` or `default:info,ads:debug`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut levels = Self {
            default: Level::Info,
            scopes: BTreeMap::new(),
        };
        for part in text
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
        {
            let (scope, level) = part.split_once(':').unwrap_or((DEFAULT, part));
            levels.set(scope.trim(), level.trim())?;
        }
        Ok(levels)
    }

    /// Sets one scope; `default` and istiod's `all` mean every scope that was not set by itself, and every one.
    fn set(&mut self, scope: &str, level: &str) -> Result<(), String> {
        let level = Level::parse(level)?;
        if scope == "all" {
            self.default = level;
            self.scopes.clear();
        } else if scope == DEFAULT {
            self.default = level;
        } else {
            let known = SCOPES.iter().find(|known| known.name == scope);
            let known = known
                .ok_or_else(|| format!("there is no scope {scope:?}; there are {}", names()))?;
            self.scopes.insert(known.name, level);
        }
        Ok(())
    }

    fn level(&self, scope: &str) -> Level {
        self.scopes.get(scope).copied().unwrap_or(self.default)
    }

    /// Libraries speak at warn and worse only: at debug they would drown what was asked for.
    fn targets(&self) -> Targets {
        let ours = SCOPES.iter().flat_map(|scope| {
            scope
                .targets
                .iter()
                .map(|target| (*target, self.level(scope.name).filter()))
        });
        Targets::new()
            .with_targets(ours)
            .with_default(self.default.min(Level::Warn).filter())
    }
}

fn names() -> String {
    SCOPES
        .iter()
        .map(|scope| scope.name)
        .collect::<Vec<_>>()
        .join(", ")
}

/// A scope as `/scopez` shows it.
#[derive(Debug, Serialize)]
pub(crate) struct ScopeInfo {
    pub(crate) name: &'static str,
    description: &'static str,
    output_level: Level,
}

/// The running log; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Logging {
    levels: Arc<Mutex<Levels>>,
    handle: reload::Handle<Targets, Registry>,
}

impl Logging {
    /// Starts the log of the process. Only the first call has an effect.
    pub(crate) fn start(settings: &settings::Log) -> Self {
        let (filter, handle) = reload::Layer::new(settings.levels.targets());
        let writer = if settings.stdout {
            BoxMakeWriter::new(std::io::stdout)
        } else {
            BoxMakeWriter::new(std::io::stderr)
        };
        let lines = tracing_subscriber::fmt::layer()
            .event_format(Line {
                json: settings.json,
            })
            .with_writer(writer);
        let started = tracing_subscriber::registry()
            .with(lines.with_filter(filter))
            .try_init();
        drop(started);
        Self {
            levels: Arc::new(Mutex::new(settings.levels.clone())),
            handle,
        }
    }

    /// All scopes with their levels.
    pub(crate) fn scopes(&self) -> Vec<ScopeInfo> {
        let levels = self.levels.lock().unwrap_or_else(PoisonError::into_inner);
        let info = |scope: &Scope| ScopeInfo {
            name: scope.name,
            description: scope.about,
            output_level: levels.level(scope.name),
        };
        SCOPES.iter().map(info).collect()
    }

    /// Changes the level of one scope (or `all`) from now on.
    pub(crate) fn set(&self, scope: &str, level: &str) -> Result<(), String> {
        let mut levels = self.levels.lock().unwrap_or_else(PoisonError::into_inner);
        levels.set(scope, level)?;
        self.handle
            .reload(levels.targets())
            .map_err(|error| error.to_string())
    }
}

fn scope_of(target: &str) -> &'static str {
    let below = |parent: &str| {
        target
            .strip_prefix(parent)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    SCOPES
        .iter()
        .find(|scope| scope.targets.iter().any(|t| below(t)))
        .map_or(DEFAULT, |scope| scope.name)
}

/// Writes an event as `time level scope message key=value…`, with tabs between the first four, or as JSON.
struct Line {
    json: bool,
}

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let level = event.metadata().level().as_str().to_ascii_lowercase();
        let scope = scope_of(event.metadata().target());
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        if self.json {
            let mut fields = Fields::default();
            event.record(&mut fields);
            let head = [
                ("level", level),
                ("time", time),
                ("scope", scope.to_owned()),
                ("msg", fields.message),
            ];
            let mut line: Map<_, _> = head
                .into_iter()
                .map(|(key, value)| (key.to_owned(), Value::String(value)))
                .collect();
            line.extend(fields.rest);
            return writeln!(writer, "{}", Value::Object(line));
        }
        let mut fields = Fields::default();
        event.record(&mut fields);
        write!(writer, "{time}\t{level}\t{scope}\t")?;
        escape(&mut writer, &fields.message)?;
        for (key, value) in &fields.rest {
            write!(writer, " {key}=")?;
            match value {
                Value::String(text) if text.is_empty() || text.contains(' ') => {
                    write!(writer, "{text:?}")?;
                }
                Value::String(text) => escape(&mut writer, text)?,
                other => write!(writer, "{other}")?,
            }
        }
        writeln!(writer)
    }
}

/// Text from users and proxies must not start lines of its own, nor drive a terminal.
fn escape(writer: &mut Writer<'_>, text: &str) -> fmt::Result {
    for c in text.chars() {
        if c.is_control() && c != '\t' {
            write!(writer, "{}", c.escape_default())?;
        } else {
            writer.write_char(c)?;
        }
    }
    Ok(())
}

#[derive(Default)]
struct Fields {
    message: String,
    rest: Map<String, Value>,
}

impl Fields {
    fn set(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            (name, value) => {
                self.rest.insert(name.to_owned(), value);
            }
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set(field, Value::String(format!("{value:?}")));
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, value.into());
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, value.into());
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, value.into());
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field, value.into());
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_read_as_istiod_writes_them() {
        let levels = Levels::parse("default:warn,ads:debug").unwrap();
        assert_eq!(
            (levels.level("ads"), levels.level("push")),
            (Level::Debug, Level::Warn)
        );
        assert_eq!(Levels::parse("debug").unwrap().level("http"), Level::Debug);
        let levels = Levels::parse("ads:debug,all:none").unwrap();
        assert_eq!(levels.level("ads"), Level::None);
        assert!(Levels::parse("ads:loud").unwrap_err().contains("loud"));
        assert!(
            Levels::parse("adz:info")
                .unwrap_err()
                .contains("ads, config")
        );
    }

    #[test]
    fn targets_follow_their_scope() {
        let targets = Levels::parse("info,ads:debug").unwrap().targets();
        let debug = tracing::Level::DEBUG;
        assert!(targets.would_enable("ads", &debug));
        assert!(targets.would_enable("pilotfish_xds::session", &debug));
        assert!(!targets.would_enable("pilotfish_sources", &debug));
        assert!(targets.would_enable("pilotfish::plane", &tracing::Level::INFO));
        assert!(!targets.would_enable("h2::codec", &tracing::Level::INFO));
    }

    #[test]
    fn targets_have_a_scope() {
        for (target, scope) in [
            ("ads", "ads"),
            ("pilotfish_xds::session", "ads"),
            ("pilotfish::serve", "default"),
            ("h2", "default"),
            ("pilotfish_sources", "file"),
        ] {
            assert_eq!(scope_of(target), scope);
        }
    }

    #[test]
    fn text_cannot_forge_lines() {
        let mut out = String::new();
        escape(&mut Writer::new(&mut out), "a\nb\u{1b}[31m").unwrap();
        assert_eq!(out, "a\\nb\\u{1b}[31m");
    }
}
