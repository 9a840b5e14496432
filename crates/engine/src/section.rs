//! Parts of a proxy's configuration, each with just the scope it depends on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use pilotfish_emit::{self as emit, Dialect, Encoded};
use pilotfish_ir::listener::{Handler, Tracing};
use pilotfish_lower::route::{HostKey, TableKey};
use pilotfish_lower::{
    Client, ClusterScope, EndpointScope, InboundScope, ListenerScope, NameScope, ProxyKind,
    RouteScope, SecretScope, cluster, dns, endpoint, gateway, inbound, outbound, route, secret,
    visibility,
};
use pilotfish_mesh::{Reader, ServiceId, Text};
use pilotfish_xds::{Packer, Resource};
use rustc_hash::FxHashSet;

use crate::intern::{self, FactIds, Interner, ObjectNames};
use crate::key::Key;
use crate::memo::{Output, Piece};

/// One part of a configuration for one scope; equal values are the same thing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Section {
    Clusters(ClusterScope, Arc<Dialect>),
    Endpoints(EndpointScope, Arc<Dialect>),
    Routes(RouteScope, Arc<Dialect>),
    /// Route tables without their hosts, and the hosts: for proxies that take these one by one.
    Tables(RouteScope),
    Hosts(RouteScope, Arc<Dialect>),
    Listeners(ListenerScope, Arc<Dialect>),
    InboundClusters(InboundScope, Arc<Dialect>),
    InboundListeners(InboundScope, Arc<Dialect>),
    Names(NameScope),
    Secrets(SecretScope, Arc<Dialect>),
}

/// The unit of work.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum PieceKey {
    /// Which pieces there are.
    Roots,
    /// What does not depend on services.
    Fixed,
    /// One destination.
    Service(ServiceId),
    /// One secret, by the name it is asked for.
    Secret(Text),
    /// Listeners of one port.
    Port(u16),
    /// One route table: which virtual hosts it has.
    Table(TableKey),
    /// One virtual host.
    Host(TableKey, HostKey),
}

impl PieceKey {
    /// The namespace of what it is about; empty if that has none.
    pub(crate) fn namespace(&self) -> &str {
        match self {
            Self::Service(id) | Self::Host(_, HostKey::Service(id) | HostKey::Port(id, _)) => {
                &id.namespace
            }
            Self::Host(_, HostKey::Written(namespace, ..)) => namespace,
            _ => "",
        }
    }
}

/// An encoded virtual host.
#[derive(Debug)]
pub(crate) struct HostBytes {
    /// Equal for equal hosts.
    id: u128,
    /// One number for each domain, in order; no two domains share one. Their names are in the bytes.
    pub(crate) domains: Box<[u128]>,
    /// The host as it stands in a table; empty if it is a resource of its own.
    bytes: Bytes,
    /// The host as a resource of its own, for proxies that take hosts one by one.
    pub(crate) apart: Option<Arc<Resource>>,
    pub(crate) sources: Arc<[Text]>,
}

/// Encodings shared by all sections.
#[derive(Debug, Default)]
pub(crate) struct Interners {
    resources: Interner<Resource>,
    hosts: Interner<HostBytes>,
    pub(crate) packer: Packer,
    objects: ObjectNames,
    pub(crate) facts: FactIds,
}

impl Interners {
    /// Makes everything again for whoever asks next; what is in use stays.
    pub(crate) fn forget(&self) {
        self.resources.forget();
        self.hosts.forget();
    }

    /// A table without its hosts.
    pub(crate) fn table_without_hosts(
        &self,
        table: &pilotfish_ir::RouteTable,
        sources: &Arc<[Text]>,
    ) -> Arc<Resource> {
        self.resources
            .get(intern::key(&("rds alone", table, sources)), || {
                let encoded = emit::table_without_hosts(table);
                Resource::new(encoded.name, &encoded.any, sources.clone())
            })
    }

    /// The table that these hosts make up.
    pub(crate) fn table(
        &self,
        table: &pilotfish_ir::RouteTable,
        hosts: &[Arc<HostBytes>],
        sources: &Arc<[Text]>,
    ) -> Arc<Resource> {
        let ids: Vec<u128> = hosts.iter().map(|h| h.id).collect();
        self.resources
            .get(intern::key(&("rds", table, ids, sources)), || {
                let bytes: Vec<Bytes> = hosts.iter().map(|h| h.bytes.clone()).collect();
                let encoded = emit::route_table(table, &bytes);
                Resource::new(encoded.name, &encoded.any, sources.clone())
            })
    }
}

impl Section {
    /// What it is about, in words.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Clusters(..) => "clusters",
            Self::Endpoints(..) => "endpoints",
            Self::Routes(..) => "routes",
            Self::Tables(..) => "route tables",
            Self::Hosts(..) => "virtual hosts",
            Self::Listeners(..) => "listeners",
            Self::InboundClusters(..) => "inbound clusters",
            Self::InboundListeners(..) => "inbound listeners",
            Self::Names(..) => "names",
            Self::Secrets(..) => "secrets",
        }
    }

    /// The proxy as pieces may ask about it.
    pub(crate) fn client(&self) -> &Client {
        match self {
            Self::Clusters(s, _) => &s.client,
            Self::Endpoints(s, _) => &s.client,
            Self::Routes(s, _) | Self::Hosts(s, _) | Self::Tables(s) => &s.client,
            Self::Listeners(s, _) => &s.client,
            Self::InboundClusters(s, _) | Self::InboundListeners(s, _) => &s.client,
            Self::Names(s) => &s.client,
            Self::Secrets(s, _) => &s.client,
        }
    }

    /// Whether resources of a piece are the same for every scope that the piece serves.
    pub(crate) const fn is_shared_whole(&self) -> bool {
        !matches!(self, Self::Listeners(..))
    }

    /// The section without what pieces can ask about: scopes of which it is equal share pieces.
    pub(crate) fn family(&self) -> Self {
        let mut out = self.clone();
        let client = match &mut out {
            Self::Clusters(s, _) => &mut s.client,
            Self::Endpoints(s, _) => &mut s.client,
            Self::Routes(s, _) | Self::Hosts(s, _) | Self::Tables(s) => &mut s.client,
            Self::Listeners(s, _) => &mut s.client,
            Self::InboundClusters(s, _) | Self::InboundListeners(s, _) => &mut s.client,
            Self::Names(s) => &mut s.client,
            Self::Secrets(s, _) => &mut s.client,
        };
        *client = client.anonymous();
        if let Self::Listeners(s, _) = &mut out {
            s.tracing = nobody(s.tracing.as_ref());
        }
        out
    }

    /// Listeners as resources of this scope's proxies.
    pub(crate) fn stamp(
        &self,
        all: &[pilotfish_ir::Listener],
        sources: &Arc<[Text]>,
        shared: &Interners,
    ) -> Vec<Arc<Resource>> {
        let Self::Listeners(s, d) = self else {
            return Vec::new();
        };
        let mut all = all.to_vec();
        for listener in &mut all {
            let chains = listener
                .chains
                .iter_mut()
                .chain(&mut listener.default_chain);
            for chain in chains {
                if let Handler::Http(http) = &mut chain.handler
                    && http.tracing.is_some()
                {
                    http.tracing.clone_from(&s.tracing);
                }
            }
        }
        let drafts = listeners(all, d).into_iter();
        drafts.map(|d| d.finish(sources, shared)).collect()
    }

    /// Builds one piece. `intern` gives the one allocation of a key.
    pub(crate) fn build(
        &self,
        reader: Reader<'_>,
        key: &PieceKey,
        shared: &Interners,
        intern: impl FnMut(PieceKey) -> Key,
    ) -> Piece {
        let (output, record) = match key {
            PieceKey::Roots => {
                let keys: BTreeSet<PieceKey> = self.roots(&reader).into_iter().collect();
                let record = reader.into_record();
                let chosen_by = shared.objects.of(&record.sources);
                let keys = keys.into_iter().map(intern).collect();
                (Output::Keys(keys, chosen_by), record)
            }
            PieceKey::Table(table) => {
                let hosts = self.hosts(&reader, table);
                let record = reader.into_record();
                let chosen_by = shared.objects.of(&record.sources);
                let keys = hosts.into_iter().map(|h| PieceKey::Host(table.clone(), h));
                (Output::Keys(keys.map(intern).collect(), chosen_by), record)
            }
            PieceKey::Host(table, host) => {
                let (host, record) = self.host(reader, table, host, &FxHashSet::default(), shared);
                (Output::Host(host), record)
            }
            _ => {
                let names = self.names(&reader, key);
                let unstamped = self.listeners(&reader, key);
                let drafts = self.resources(&reader, key);
                let record = reader.into_record();
                let sources = shared.objects.of(&record.sources);
                let output = if let Some(bytes) = names {
                    Output::Names(bytes, sources)
                } else if let Some(listeners) = unstamped {
                    Output::Listeners(listeners.into(), sources)
                } else {
                    let finished = drafts.into_iter().map(|d| d.finish(&sources, shared));
                    Output::Resources(finished.collect())
                };
                (output, record)
            }
        };
        Piece::new(output, record, &shared.facts)
    }

    /// The pieces of this section.
    fn roots(&self, r: &Reader<'_>) -> Vec<PieceKey> {
        match self {
            Self::Clusters(s, _) => with_fixed(upstreams(r, &s.client)),
            Self::Endpoints(s, _) => upstreams(r, &s.client),
            Self::Names(s) => pieces(visible(r, &s.client)),
            Self::Routes(s, _) | Self::Hosts(s, _) | Self::Tables(s) => route::tables(r, s)
                .into_iter()
                .map(PieceKey::Table)
                .collect(),
            Self::Listeners(s, _) if s.client.kind == ProxyKind::Router => vec![PieceKey::Fixed],
            Self::Listeners(s, _) => with_fixed(
                outbound::ports(r, s)
                    .into_iter()
                    .map(PieceKey::Port)
                    .collect(),
            ),
            Self::InboundClusters(..) | Self::InboundListeners(..) => vec![PieceKey::Fixed],
            Self::Secrets(s, _) => secret::names(r, s)
                .into_iter()
                .map(PieceKey::Secret)
                .collect(),
        }
    }

    /// The resources of one piece, encoded. `finish` gives the sources once everything has been read.
    fn resources(&self, r: &Reader<'_>, key: &PieceKey) -> Vec<Draft> {
        match (self, key) {
            (Self::Clusters(s, d), PieceKey::Fixed) => clusters(cluster::fixed(r, s), d),
            (Self::Clusters(s, d), PieceKey::Service(id)) => {
                clusters(cluster::outbound(r, s, id), d)
            }
            (Self::Endpoints(s, d), PieceKey::Service(id)) => {
                let draft = |set| {
                    Draft::new(intern::key(&("eds", &set, d)), d, move |d| {
                        emit::endpoints(&set, d)
                    })
                };
                endpoint::sets(r, s, id).into_iter().map(draft).collect()
            }
            (Self::InboundClusters(s, d), PieceKey::Fixed) => clusters(inbound::clusters(r, s), d),
            (Self::InboundListeners(s, d), PieceKey::Fixed) => {
                listeners(inbound::listeners(r, s), d)
            }
            (Self::Secrets(s, d), PieceKey::Secret(name)) => {
                let draft = |s| Draft::new(intern::key(&("sds", &s)), d, move |_| emit::secret(&s));
                secret::secret(r, s, name).map(draft).into_iter().collect()
            }
            _ => Vec::new(),
        }
    }

    /// Outbound listeners of a piece, as they are for any proxy; `None` for other sections.
    fn listeners(&self, r: &Reader<'_>, key: &PieceKey) -> Option<Vec<pilotfish_ir::Listener>> {
        let Self::Listeners(s, _) = self else {
            return None;
        };
        let s = &ListenerScope {
            tracing: nobody(s.tracing.as_ref()),
            ..s.clone()
        };
        Some(match key {
            PieceKey::Fixed if s.client.kind == ProxyKind::Router => gateway::listeners(r, s),
            PieceKey::Fixed => outbound::intercept(r, s)
                .into_iter()
                .chain(outbound::http_proxy(r, s))
                .collect(),
            PieceKey::Port(p) => outbound::listeners(r, s, *p),
            _ => Vec::new(),
        })
    }

    /// The names of a service, encoded; `None` for other sections.
    fn names(&self, r: &Reader<'_>, key: &PieceKey) -> Option<Bytes> {
        match (self, key) {
            (Self::Names(s), PieceKey::Service(id)) => Some(emit::names(&dns::names(r, s, id))),
            _ => None,
        }
    }

    /// The virtual hosts of a table, in order of ownership.
    fn hosts(&self, r: &Reader<'_>, table: &TableKey) -> Vec<HostKey> {
        let (Self::Routes(s, _) | Self::Hosts(s, _)) = self else {
            return Vec::new();
        };
        route::hosts(r, s, table)
    }

    /// One virtual host, without the domains that others own.
    pub(crate) fn host(
        &self,
        reader: Reader<'_>,
        table: &TableKey,
        key: &HostKey,
        owned: &FxHashSet<u128>,
        shared: &Interners,
    ) -> (Option<Arc<HostBytes>>, pilotfish_mesh::reader::Record) {
        let (Self::Routes(s, d) | Self::Hosts(s, d)) = self else {
            return (None, reader.into_record());
        };
        let lowered = route::virtual_host(&reader, s, table, key).map(|mut h| {
            h.domains.retain(|d| !owned.contains(&intern::number(d)));
            if let Self::Hosts(..) = self {
                h.name = emit::name_apart(&table.name(), &h.name);
            }
            h
        });
        let record = reader.into_record();
        let sources = shared.objects.of(&record.sources);
        let host = lowered.filter(|h| !h.domains.is_empty()).map(|h| {
            let id = intern::key(&("vhost", &h, d, &sources));
            shared.hosts.get(id, || {
                let bytes = emit::virtual_host(&h, d);
                let apart = matches!(self, Self::Hosts(..)).then(|| {
                    let encoded = emit::host_apart(&h.name, &bytes);
                    Resource::to_be_packed(
                        encoded.name,
                        &encoded.any,
                        sources.clone(),
                        &shared.packer,
                    )
                });
                Arc::new(HostBytes {
                    id,
                    bytes: apart.as_ref().map_or(bytes, |_| Bytes::new()),
                    apart,
                    domains: h.domains.iter().map(|d| intern::number(d)).collect(),
                    sources: sources.clone(),
                })
            })
        });
        (host, record)
    }
}

/// Tracing that says nothing of the proxy, where requests are traced at all.
fn nobody(tracing: Option<&Tracing>) -> Option<Tracing> {
    tracing.map(|_| Tracing::default())
}

fn with_fixed(mut keys: Vec<PieceKey>) -> Vec<PieceKey> {
    keys.push(PieceKey::Fixed);
    keys
}

/// Services that a proxy has clusters for: those it sees, or of them those it can reach.
fn upstreams(r: &Reader<'_>, client: &pilotfish_lower::Client) -> Vec<PieceKey> {
    let mut seen = visible(r, client);
    if let Some(reached) = gateway::reached(r, client) {
        seen.retain(|id| reached.has(id));
    }
    pieces(seen)
}

fn pieces(ids: Vec<ServiceId>) -> Vec<PieceKey> {
    ids.into_iter().map(PieceKey::Service).collect()
}

fn visible(r: &Reader<'_>, client: &pilotfish_lower::Client) -> Vec<ServiceId> {
    let mut by_host: BTreeMap<&Text, &ServiceId> = BTreeMap::new();
    for e in visibility::egress(r, client) {
        for s in visibility::services(r, client, &e) {
            by_host.entry(&s.id.host).or_insert(&s.id);
        }
    }
    let inferred = visibility::inferred(r, client);
    for id in &inferred {
        by_host.entry(&id.host).or_insert(id);
    }
    by_host.into_values().cloned().collect()
}

/// A resource that is lowered but perhaps not encoded: somebody may have done it already.
pub(crate) struct Draft {
    key: u128,
    dialect: Arc<Dialect>,
    encode: Box<dyn FnOnce(&Dialect) -> Encoded>,
}

impl Draft {
    fn new(
        key: u128,
        dialect: &Arc<Dialect>,
        encode: impl FnOnce(&Dialect) -> Encoded + 'static,
    ) -> Self {
        Self {
            key,
            dialect: dialect.clone(),
            encode: Box::new(encode),
        }
    }

    /// The shared resource.
    pub(crate) fn finish(self, sources: &Arc<[Text]>, shared: &Interners) -> Arc<Resource> {
        let key = intern::key(&(self.key, sources));
        shared.resources.get(key, || {
            let e = (self.encode)(&self.dialect);
            Resource::to_be_packed(e.name, &e.any, sources.clone(), &shared.packer)
        })
    }
}

fn clusters(all: Vec<pilotfish_ir::Cluster>, d: &Arc<Dialect>) -> Vec<Draft> {
    all.into_iter()
        .map(|c| {
            Draft::new(intern::key(&("cds", &c, d)), d, move |d| {
                emit::cluster(&c, d)
            })
        })
        .collect()
}

fn listeners(all: Vec<pilotfish_ir::Listener>, d: &Arc<Dialect>) -> Vec<Draft> {
    all.into_iter()
        .filter(|l| emit::can_listen(l, d))
        .map(|l| {
            Draft::new(intern::key(&("lds", &l, d)), d, move |d| {
                emit::listener(&l, d)
            })
        })
        .collect()
}
