//! Goes over what a policy did, request by request, with arithmetic of its own.
//!
//! The replay believes no figure before this. The one rule: nothing here is shared with the packer but the types.

use super::trace::{Inventory, Trace};
use crate::scheduler::pack::{Grant, Request, WHOLE};

/// What is free on one node.
struct Left {
    cpu_milli: u64,
    memory_mib: u64,
    devices: Vec<u16>,
    model: u8,
}

/// What is wrong with the grants for the requests of an order; nothing, if all is well.
#[must_use]
pub fn check(inventory: &Inventory, trace: &Trace, order: &[u32], grants: &[Option<Grant>]) -> Vec<String> {
    let mut nodes: Vec<Left> = inventory
        .nodes
        .iter()
        .map(|node| Left {
            cpu_milli: node.cpu_milli.into(),
            memory_mib: node.memory_mib.into(),
            devices: vec![WHOLE; node.devices.into()],
            model: node.model,
        })
        .collect();
    let mut found = Vec::new();
    if order.len() != grants.len() {
        found.push(format!("{} requests, {} answers", order.len(), grants.len()));
    }
    for (number, (row, grant)) in (1..).zip(order.iter().zip(grants)) {
        let request = &trace.requests[*row as usize];
        let wrong = match grant {
            Some(grant) => take(&mut nodes, request, grant).err(),
            None => nodes
                .iter()
                .position(|node| fits(node, request))
                .map(|node| format!("refused, but node {} has room", inventory.nodes[node].name)),
        };
        found.extend(wrong.map(|what| format!("arrival {number} (row {row}): {what}")));
    }
    found
}

fn able(node: &Left, request: &Request) -> bool {
    request.devices == 0 || request.models.0 == 0 || request.models.0 >> node.model & 1 == 1
}

fn fits(node: &Left, request: &Request) -> bool {
    let free = node.devices.iter().filter(|free| **free >= request.milli).count();
    able(node, request)
        && node.cpu_milli >= u64::from(request.cpu_milli)
        && node.memory_mib >= u64::from(request.memory_mib)
        && free >= usize::from(request.devices)
}

fn take(nodes: &mut [Left], request: &Request, grant: &Grant) -> Result<(), String> {
    let node = nodes.get_mut(grant.node as usize).ok_or("granted on no node")?;
    if !able(node, request) {
        return Err("granted on another model".to_owned());
    }
    let asked = (request.cpu_milli, request.memory_mib, request.milli);
    if (grant.cpu_milli, grant.memory_mib, grant.milli) != asked || grant.devices.len() != usize::from(request.devices)
    {
        return Err("granted something else than was asked".to_owned());
    }
    if !grant.devices.windows(2).all(|pair| pair[0] < pair[1]) {
        return Err("one device granted twice to one request".to_owned());
    }
    let left = |has: u64, takes: u32, what: &str| {
        has.checked_sub(takes.into())
            .ok_or(format!("more {what} than there is"))
    };
    node.cpu_milli = left(node.cpu_milli, grant.cpu_milli, "CPU")?;
    node.memory_mib = left(node.memory_mib, grant.memory_mib, "memory")?;
    for device in &grant.devices {
        let free = node.devices.get_mut(usize::from(*device)).ok_or("no such device")?;
        *free = free.checked_sub(grant.milli).ok_or("a device granted twice")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::trace::NodeLine;
    use crate::scheduler::pack::Models;

    fn found(requests: &[Request], grants: &[Option<Grant>]) -> Vec<String> {
        let node = |name: &str, model| NodeLine {
            name: name.to_owned(),
            model,
            devices: 2,
            cpu_milli: 4,
            memory_mib: 4,
        };
        let inventory = Inventory {
            nodes: vec![node("a", 0), node("b", 1)],
            models: vec!["x".to_owned(), "y".to_owned()],
        };
        let trace = Trace {
            requests: requests.to_vec(),
        };
        let order: Vec<u32> = (0..).take(requests.len()).collect();
        check(&inventory, &trace, &order, grants)
    }

    fn grant(node: u32, devices: &[u16], milli: u16, each: u32) -> Option<Grant> {
        Some(Grant {
            node,
            devices: devices.to_vec(),
            milli,
            cpu_milli: each,
            memory_mib: each,
        })
    }

    #[test]
    fn what_is_right_is_found_right() {
        let half = Request::of(1, 500, 1, 1);
        let requests = [half.clone(), half.clone(), Request::of(3, 1000, 1, 1)];
        assert_eq!(
            found(&requests, &[grant(0, &[1], 500, 1), grant(0, &[1], 500, 1), None]),
            [""; 0]
        );
    }

    #[test]
    fn each_cheat_is_found() {
        let half = Request::of(1, 600, 1, 1);
        let only = |bits| Request {
            models: Models(bits),
            ..half.clone()
        };
        for (requests, grants, what) in [
            (vec![half.clone()], vec![None], "refused, but node a has room"),
            (
                vec![half.clone()],
                vec![grant(0, &[0], 500, 1)],
                "granted something else than was asked",
            ),
            (vec![half.clone()], vec![grant(0, &[2], 600, 1)], "no such device"),
            (vec![half.clone()], vec![grant(9, &[0], 600, 1)], "granted on no node"),
            (vec![only(2)], vec![grant(0, &[0], 600, 1)], "granted on another model"),
            (
                vec![half.clone(), half.clone()],
                vec![grant(0, &[0], 600, 1), grant(0, &[0], 600, 1)],
                "a device granted twice",
            ),
            (
                vec![Request::of(2, 600, 1, 1)],
                vec![grant(0, &[0, 0], 600, 1)],
                "one device granted twice to one request",
            ),
            (
                vec![Request::of(1, 600, 5, 1)],
                vec![grant(0, &[0], 600, 1)],
                "something else",
            ),
        ] {
            let found = found(&requests, &grants);
            assert!(found.len() == 1 && found[0].contains(what), "{what}: {found:?}");
        }
    }
}
