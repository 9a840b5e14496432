//! Addresses for hosts of ServiceEntries that have none.
//!
//! Each host gets a slot of 240.240.0.0/16, and the same slot of 2001:2::/48, by a hash of its name. Of two that hash to
//! one slot the smaller name keeps it and the other moves on to the next free slot. This layout is a function of the set
//! of names alone: it does not matter in which order they came or which others came and went.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use imbl::OrdMap;
use pilotfish_config::Object;
use pilotfish_config::networking::{Resolution, ServiceEntry};

use crate::{ServiceId, Settings, Text};

/// The setting that turns all of it off.
const ENABLED: &str = "PILOT_ENABLE_IP_AUTOALLOCATE";
/// Slots are 1 to this; the first and last address of the range stay unused.
const SLOTS: u32 = 65_534;

/// Who has a slot. Order is precedence.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Holder {
    /// Somebody else: an address that a ServiceEntry says it has.
    Taken(u16),
    /// A host of a ServiceEntry: namespace, name, host.
    Host(Text, Text, Text),
}

impl Holder {
    fn home(&self) -> u16 {
        match self {
            Self::Taken(slot) => *slot,
            Self::Host(namespace, name, host) => {
                let text = format!("{namespace}/{name}/{host}");
                let hash = xxhash_rust::xxh3::xxh3_64(text.as_bytes());
                (hash % u64::from(SLOTS)) as u16 + 1
            }
        }
    }
}

fn next(slot: u16) -> u16 {
    if u32::from(slot) >= SLOTS {
        1
    } else {
        slot + 1
    }
}

/// All slots that are held.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slots {
    holders: OrdMap<u16, Holder>,
    held: OrdMap<Holder, u16>,
    /// How many ServiceEntries say that they have an address.
    claims: OrdMap<u16, usize>,
}

impl Slots {
    /// Changes who holds slots and returns those whose slot is another now.
    pub(crate) fn change(&mut self, gone: &[Holder], come: &[Holder]) -> BTreeSet<Holder> {
        let mut touched = BTreeSet::new();
        for holder in gone {
            if self.unclaim(holder) {
                self.remove(holder, &mut touched);
            }
        }
        for holder in come {
            if self.claim(holder) {
                self.insert(holder.clone(), &mut touched);
            }
        }
        touched
    }

    fn claim(&mut self, holder: &Holder) -> bool {
        let Holder::Taken(slot) = holder else {
            return !self.held.contains_key(holder);
        };
        let count = self.claims.entry(*slot).or_default();
        *count += 1;
        *count == 1
    }

    fn unclaim(&mut self, holder: &Holder) -> bool {
        let Holder::Taken(slot) = holder else {
            return true;
        };
        match self.claims.get_mut(slot) {
            Some(count) if *count > 1 => {
                *count -= 1;
                false
            }
            Some(_) => {
                self.claims.remove(slot);
                true
            }
            None => false,
        }
    }

    fn place(&mut self, slot: u16, holder: Holder, touched: &mut BTreeSet<Holder>) {
        touched.insert(holder.clone());
        self.held.insert(holder.clone(), slot);
        self.holders.insert(slot, holder);
    }

    fn insert(&mut self, mut holder: Holder, touched: &mut BTreeSet<Holder>) {
        if self.holders.len() as u32 >= SLOTS {
            return;
        }
        let mut slot = holder.home();
        loop {
            match self.holders.get(&slot) {
                None => return self.place(slot, holder, touched),
                Some(there) if *there > holder => {
                    let displaced = there.clone();
                    self.place(slot, holder, touched);
                    holder = displaced;
                }
                Some(_) => {}
            }
            slot = next(slot);
        }
    }

    fn remove(&mut self, holder: &Holder, touched: &mut BTreeSet<Holder>) {
        let Some(mut slot) = self.held.remove(holder) else {
            return;
        };
        self.holders.remove(&slot);
        touched.insert(holder.clone());
        let mut followers = Vec::new();
        loop {
            slot = next(slot);
            let Some(follower) = self.holders.remove(&slot) else {
                break;
            };
            self.held.remove(&follower);
            followers.push(follower);
        }
        for follower in followers {
            self.insert(follower, touched);
        }
    }

    /// The addresses of a host.
    pub(crate) fn addresses(&self, holder: &Holder) -> Vec<Text> {
        self.held
            .get(holder)
            .map(|slot| of(*slot))
            .unwrap_or_default()
    }

    /// Addresses for a host that cannot keep those it has: of a slot that nobody holds, and that is not among those that
    /// were `given` away like this before.
    pub(crate) fn vacant(&self, holder: &Holder, given: &mut BTreeSet<u16>) -> Vec<Text> {
        let mut slot = holder.home();
        for _ in 0..SLOTS {
            if !self.holders.contains_key(&slot) && given.insert(slot) {
                return of(slot);
            }
            slot = next(slot);
        }
        Vec::new()
    }
}

/// The addresses of a slot.
fn of(slot: u16) -> Vec<Text> {
    let [high, low] = slot.to_be_bytes();
    let v4 = Ipv4Addr::new(240, 240, high, low);
    let v6 = Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, slot);
    vec![Text::from(v4.to_string()), Text::from(v6.to_string())]
}

/// Whether hosts of a ServiceEntry are to have addresses that users did not write.
pub(crate) fn wanted(object: &Object, entry: &ServiceEntry, settings: &Settings) -> bool {
    if !settings.on(ENABLED, true) {
        return false;
    }
    let opted_out = object
        .meta
        .labels
        .get("networking.istio.io/enable-autoallocate-ip")
        .is_some_and(|value| value.eq_ignore_ascii_case("false"));
    !opted_out && entry.resolution != Resolution::None && entry.addresses.is_empty()
}

/// Whether a host is one that can have an address: no pattern, except where names are looked up as they are asked for.
fn has_addresses(entry: &ServiceEntry, host: &str) -> bool {
    entry.resolution == Resolution::DynamicDns || !host.contains('*')
}

/// The hosts and addresses that the status of a ServiceEntry should have: for each host those that it has already, or else
/// those that it was given. In the order in which its author wrote the hosts.
pub(crate) fn persistent(object: &Object, slots: &Slots, settings: &Settings) -> Vec<(Text, Text)> {
    let Some(entry) = object.get::<ServiceEntry>() else {
        return Vec::new();
    };
    if !wanted(object, entry, settings) {
        return Vec::new();
    }
    let mut seen = BTreeSet::new();
    let hosts = entry.hosts.iter().filter(|host| !host.is_empty());
    hosts
        .filter(|host| has_addresses(entry, host) && seen.insert(host.as_str()))
        .flat_map(|host| {
            let host = Text::from(host.as_str());
            let mut addresses: Vec<Text> = entry
                .status_addresses
                .iter()
                .filter(|a| *a.host == *host && a.value.parse::<IpAddr>().is_ok())
                .map(|a| Text::from(a.value.as_str()))
                .collect();
            if addresses.is_empty() {
                let id = ServiceId {
                    host: host.clone(),
                    namespace: object.key.namespace.clone(),
                };
                addresses = slots.addresses(&holder(object, &id));
            }
            addresses
                .into_iter()
                .map(move |address| (host.clone(), address))
        })
        .collect()
}

/// Addresses a controller has written into the status for a host: IPv4, then IPv6.
pub(crate) fn assigned(entry: &ServiceEntry, host: &str) -> Vec<Text> {
    let (mut v4, mut v6) = (None, None);
    for address in entry.status_addresses.iter().filter(|a| a.host == host) {
        match address.value.parse::<IpAddr>() {
            Ok(IpAddr::V4(ip)) => v4 = Some(Text::from(ip.to_string())),
            Ok(IpAddr::V6(ip)) => v6 = Some(Text::from(ip.to_string())),
            Err(_) => {}
        }
    }
    v4.into_iter().chain(v6).collect()
}

/// Under which name a host of an object holds a slot.
pub(crate) fn holder(object: &Object, id: &ServiceId) -> Holder {
    Holder::Host(
        object.key.namespace.clone(),
        object.key.name.clone(),
        id.host.clone(),
    )
}

/// The slots an object holds or says are taken.
pub(crate) fn holders(object: &Object, ids: &[ServiceId], settings: &Settings) -> BTreeSet<Holder> {
    let Some(entry) = object.get::<ServiceEntry>() else {
        return BTreeSet::new();
    };
    let written = entry.status_addresses.iter().map(|a| a.value.as_str());
    let taken = written
        .chain(entry.addresses.iter().map(String::as_str))
        .filter_map(|text| match text.parse().ok()? {
            IpAddr::V4(ip) => match ip.octets() {
                [240, 240, high, low] => Some(u16::from_be_bytes([high, low])),
                _ => None,
            },
            IpAddr::V6(ip) => match ip.segments() {
                [0x2001, 2, 0, 0, 0, 0, 0, slot] => Some(slot),
                _ => None,
            },
        })
        .filter(|slot| *slot > 0 && u32::from(*slot) <= SLOTS)
        .map(Holder::Taken);
    let mut holders: BTreeSet<Holder> = taken.collect();
    if wanted(object, entry, settings) {
        holders.extend(
            ids.iter()
                .filter(|id| has_addresses(entry, &id.host))
                .filter(|id| assigned(entry, &id.host).is_empty())
                .map(|id| holder(object, id)),
        );
    }
    holders
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(n: u32) -> Holder {
        Holder::Host("ns".into(), "entry".into(), format!("h{n}.example").into())
    }

    #[test]
    fn the_layout_depends_on_the_set_only() {
        let all: Vec<Holder> = (0..40_000).map(host).collect();
        let mut forwards = Slots::default();
        forwards.change(&[], &all[..20_000]);
        let mut backwards = Slots::default();
        let reversed: Vec<Holder> = all.iter().rev().cloned().collect();
        backwards.change(&[], &reversed);
        backwards.change(&all[20_000..], &[]);
        assert_eq!(forwards.holders, backwards.holders);
        assert_eq!(forwards.held, backwards.held);
    }

    #[test]
    fn writing_addresses_down_moves_nobody() {
        // Enough for many neighbours that were pushed aside.
        let all: Vec<Holder> = (0..8_000).map(host).collect();
        let mut slots = Slots::default();
        slots.change(&[], &all);
        let before: Vec<_> = all.iter().map(|holder| slots.addresses(holder)).collect();
        let (written, rest) = all.split_at(3_000);
        for holder in written.iter().rev() {
            let slot = slots.held[holder];
            slots.change(std::slice::from_ref(holder), &[Holder::Taken(slot)]);
        }
        for (holder, before) in rest.iter().zip(&before[3_000..]) {
            assert_eq!(slots.addresses(holder), *before);
        }
    }

    #[test]
    fn what_is_vacant_is_held_by_nobody_and_given_once() {
        let mut slots = Slots::default();
        slots.change(&[], &[Holder::Taken(host(1).home()), host(2)]);
        let mut given = BTreeSet::new();
        let first = slots.vacant(&host(1), &mut given);
        let second = slots.vacant(&host(1), &mut given);
        assert_eq!((first.len(), second.len()), (2, 2));
        assert_ne!(first, second);
        assert!(![first, second].contains(&of(host(1).home())));
        let all: Vec<Holder> = (1..=SLOTS as u16).map(Holder::Taken).collect();
        slots.change(&[], &all);
        assert!(
            slots.vacant(&host(1), &mut given).is_empty(),
            "all are held"
        );
    }

    #[test]
    fn what_is_taken_is_not_given() {
        let mut slots = Slots::default();
        slots.change(&[], &[host(1)]);
        let home = host(1).home();
        let before = slots.addresses(&host(1));
        let moved = slots.change(&[], &[Holder::Taken(home), Holder::Taken(home)]);
        assert!(moved.contains(&host(1)));
        assert_ne!(slots.addresses(&host(1)), before);
        slots.change(&[Holder::Taken(home)], &[]);
        assert_ne!(slots.addresses(&host(1)), before);
        slots.change(&[Holder::Taken(home)], &[]);
        assert_eq!(slots.addresses(&host(1)), before);
    }
}
