//! Why a lease waits, in words that a person can act on.
//!
//! The planner asks here when nothing fits. The one rule: the first obstacle in the order of what the reader can do about
//! it: a request that can never fit, then a shape that does not fit what is free, then devices that are not there now.

use std::fmt;

use holdfast_proto::device::ModelName;
use holdfast_proto::id::{LeaseId, NodeId, TenantId};

use super::picture::{Hold, NodePicture, Picture, Takes};
use super::plan::{Ask, count, in_zone, model_sets, offer};

/// Why a lease waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// No node has any of the models.
    NoModel {
        /// Models asked, best first.
        asked: Vec<ModelName>,
        /// Models that exist, ordered.
        present: Vec<ModelName>,
    },
    /// Even an empty cluster in which all nodes are heard could not hold it.
    NeverFits {
        /// Devices asked.
        asked: u32,
        /// Most that could ever fit in this shape.
        most: u32,
    },
    /// Enough devices are free, but not on one node.
    Fragmented {
        /// Devices asked on one node.
        asked: u32,
        /// Devices free.
        free: u32,
        /// On so many nodes.
        nodes: u32,
        /// Most on one node.
        most: u32,
    },
    /// Enough devices are free, but not of one model.
    Mixed {
        /// Devices asked of one model.
        asked: u32,
        /// Devices free.
        free: u32,
        /// Most of one model.
        most: u32,
    },
    /// Enough devices are free, but CPU or memory beside them is granted.
    MachineFull {
        /// Devices asked.
        asked: u32,
        /// Devices free.
        free: u32,
        /// For so many of them CPU and memory suffice.
        carried: u32,
    },
    /// Too few devices are free now.
    Busy {
        /// Devices asked.
        asked: u32,
        /// Devices free.
        free: u32,
        /// Devices that fit the request.
        total: u32,
        /// Of them out of order.
        out: u32,
        /// Of them on nodes that take no work.
        away: u32,
        /// Why those nodes take none: nodes not heard, cordoned, and not yet told.
        nodes: [u32; 3],
    },
    /// It would fit now, but would last into the time at which a lease before it needs the place.
    Kept {
        /// The lease for which the place is kept.
        lease: LeaseId,
    },
    /// Its tenant's limits leave too little of every model that it accepts.
    Limited {
        /// The tenant.
        tenant: TenantId,
        /// Devices asked.
        asked: u32,
        /// What is left of the models that are limited.
        models: Vec<(ModelName, u32)>,
        /// What is left of its money, micro-units for one hour.
        micros_left: Option<u64>,
    },
    /// Its saved state is on nodes that cannot be heard.
    StateAway {
        /// Nodes that hold it, by their labels.
        holders: Vec<String>,
    },
    /// Members of its present placement have not proven their end.
    StillRuns {
        /// Labels of their nodes.
        nodes: Vec<String>,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoModel { asked, present } => {
                write!(out, "no node has model {}; there are {}", list(asked), list(present))
            }
            Self::NeverFits { asked, most } => write!(out, "{asked} devices asked, max {most} possible"),
            Self::Fragmented {
                asked,
                free,
                nodes,
                most,
            } => {
                write!(
                    out,
                    "fragmented: {free} free on {nodes} nodes, {asked} asked on one, at most {most} there"
                )
            }
            Self::Mixed { asked, free, most } => {
                write!(
                    out,
                    "{free} devices are free, but at most {most} of one model, {asked} asked"
                )
            }
            Self::MachineFull { asked, free, carried } => {
                write!(
                    out,
                    "{free} devices are free, {asked} asked, but CPU and memory are left for {carried}"
                )
            }
            Self::Busy {
                asked,
                free,
                total,
                out: broken,
                away,
                nodes,
            } => {
                write!(out, "busy: {free} of {total} devices free, {asked} asked")?;
                if *broken > 0 {
                    write!(out, "; {broken} out of order")?;
                }
                if *away > 0 {
                    write!(out, "; {away} on nodes that take no work ({})", kinds(nodes))?;
                }
                Ok(())
            }
            Self::Kept { lease } => write!(
                out,
                "the place is kept for {lease}, which waits before it; a shorter lease would fit in between"
            ),
            Self::Limited {
                tenant,
                asked,
                models,
                micros_left,
            } => {
                let left = left_words(models, *micros_left);
                write!(out, "the limits of tenant {tenant} leave {left}; {asked} devices asked")
            }
            Self::StateAway { holders } => {
                write!(
                    out,
                    "its saved state is on {}, which cannot be heard",
                    holders.join(", ")
                )
            }
            Self::StillRuns { nodes } => write!(out, "waits for proof that it has ended on {}", nodes.join(", ")),
        }
    }
}

/// How many nodes take no work for which reason.
fn kinds(nodes: &[u32; 3]) -> String {
    let named = nodes.iter().zip(["not heard", "cordoned", "starting"]);
    let named = named.filter(|(count, _)| **count > 0);
    let named: Vec<String> = named.map(|(count, name)| format!("{count} {name}")).collect();
    named.join(", ")
}

/// What limits leave, in words.
fn left_words(models: &[(ModelName, u32)], micros_left: Option<u64>) -> String {
    let models = models.iter().map(|(model, left)| format!("{left} {model}"));
    let money = micros_left.map(|left| format!("{} an hour", money_words(left)));
    models.chain(money).collect::<Vec<_>>().join(", ")
}

/// Micro-units as money, rounded down to hundredths.
fn money_words(micros: u64) -> String {
    format!("{}.{:02}", micros / 1_000_000, micros % 1_000_000 / 10_000)
}

fn list(models: &[ModelName]) -> String {
    match models {
        [] => "none".to_owned(),
        models => models.iter().map(ModelName::as_str).collect::<Vec<_>>().join(", "),
    }
}

/// Finds the reason for which nothing fits.
pub(super) fn why(picture: &Picture, ask: &Ask<'_>) -> Reason {
    let (asked, present) = (ask.request.devices_min, picture.models());
    if !ask.models.iter().any(|model| present.contains(model)) {
        return Reason::NoModel {
            asked: ask.models.clone(),
            present,
        };
    }
    let most = most_fitting(&emptied(picture), ask);
    if most < asked {
        return Reason::NeverFits { asked, most };
    }
    let open: Vec<(&NodeId, &NodePicture)> = nodes(picture, ask)
        .filter(|(_, node)| node.takes == Takes::Work)
        .collect();
    let free_on = |node: &NodePicture| count(node.free_for(ask.lease, ask.milli, &ask.models));
    let free = open
        .iter()
        .fold(0_u32, |sum, (_, node)| sum.saturating_add(free_on(node)));
    if free < asked {
        return busy(picture, ask, free);
    }
    let offers: Vec<_> = open
        .iter()
        .map(|(id, node)| offer(**id, node, ask, &ask.models))
        .collect();
    let carried = offers.iter().fold(0_u32, |sum, offer| sum.saturating_add(offer.fits));
    if carried < asked {
        return Reason::MachineFull { asked, free, carried };
    }
    if ask.request.single_node {
        let nodes = count(open.iter().filter(|(_, node)| free_on(node) > 0));
        let most = offers.iter().map(|offer| offer.fits).max().unwrap_or(0);
        return Reason::Fragmented {
            asked,
            free,
            nodes,
            most,
        };
    }
    Reason::Mixed {
        asked,
        free,
        most: most_fitting(picture, ask),
    }
}

fn nodes<'a>(picture: &'a Picture, ask: &'a Ask<'_>) -> impl Iterator<Item = (&'a NodeId, &'a NodePicture)> {
    picture.nodes.iter().filter(|(_, node)| in_zone(node, ask.request))
}

/// Most devices that the request could get of what a picture offers.
pub(super) fn most_fitting(picture: &Picture, ask: &Ask<'_>) -> u32 {
    let mut most = 0;
    for models in model_sets(ask) {
        let open = nodes(picture, ask).filter(|(_, node)| node.takes == Takes::Work);
        let fits = open.map(|(id, node)| offer(*id, node, ask, models).fits);
        most = most.max(match ask.request.single_node {
            true => fits.max().unwrap_or(0),
            false => fits.fold(0, u32::saturating_add),
        });
    }
    most
}

/// The same cluster with nothing granted and every node heard. Devices that are out stay out.
fn emptied(picture: &Picture) -> Picture {
    let mut empty = picture.clone();
    for node in empty.nodes.values_mut() {
        node.takes = Takes::Work;
        node.grants.clear();
        for device in node.devices.iter_mut().filter(|device| device.hold != Hold::Out) {
            device.hold = Hold::Free;
        }
    }
    empty
}

fn busy(picture: &Picture, ask: &Ask<'_>, free: u32) -> Reason {
    let (mut total, mut out, mut away, mut kinds) = (0_u32, 0_u32, 0_u32, [0_u32; 3]);
    for (_, node) in nodes(picture, ask) {
        let fitting = || node.devices.iter().filter(|device| ask.models.contains(&device.model));
        let here = count(fitting());
        total = total.saturating_add(here);
        let kind = match node.takes {
            Takes::Work => {
                out = out.saturating_add(count(fitting().filter(|device| device.hold == Hold::Out)));
                continue;
            }
            Takes::Unheard => 0,
            Takes::Cordoned => 1,
            Takes::Untold => 2,
        };
        if here > 0 {
            away = away.saturating_add(here);
            kinds[kind] += 1;
        }
    }
    Reason::Busy {
        asked: ask.request.devices_min,
        free,
        total,
        out,
        away,
        nodes: kinds,
    }
}
