//! Who goes first: tenants that had less, leases that waited long, limits, and spot that gives way.

use holdfast_proto::tenant::{Limit, ModelLimit};

use super::*;

impl Cluster {
    /// A cluster whose rules are those that every node of this build knows, and a second tenant, green.
    fn of_today(nodes: &[(u32, &str)]) -> Self {
        let mut cluster = Self::new(nodes);
        cluster.know(2);
        let quota = Quota { devices_max: 10_000 };
        let green = name("green");
        cluster
            .apply(operator(), Command::SetTenant { tenant: green, quota })
            .unwrap();
        cluster.settle(&mut Scheduler::new());
        assert_eq!(cluster.state().cluster.level, 2);
        cluster
    }

    fn request_of(&mut self, tenant: &str, devices: u32, plan: Plan) -> LeaseId {
        let mut create = self.order(devices, None);
        create.tenant = name(tenant);
        create.terms.plan = plan;
        self.create(create)
    }

    /// A member of a lease that must stop proves that it has.
    fn stop_on(&mut self, lease: LeaseId, node: NodeId) {
        let found = self.state().leases.get(&lease).unwrap().clone();
        let exited = Command::ReportExited {
            lease,
            epoch: found.epoch,
            attempt: found.placement.as_ref().unwrap().attempt,
            node,
            exit: Exit::Stopped,
        };
        self.apply(Principal::Node(node), exited).unwrap();
    }
}

/// No lease.
const NOBODY: [LeaseId; 0] = [];

fn preempted(said: &[Command]) -> Vec<LeaseId> {
    let victim = |command: &Command| match command {
        Command::PreemptLease { lease, .. } => Some(*lease),
        _ => None,
    };
    said.iter().filter_map(victim).collect()
}

#[test]
fn a_tenant_that_asks_for_much_does_not_keep_one_that_asks_for_little_waiting() {
    let mut cluster = Cluster::of_today(&[(8, "a100")]);
    let mut scheduler = Scheduler::new();
    let flood: Vec<LeaseId> = (0..40).map(|_| cluster.request_of("blue", 1, Plan::OnDemand)).collect();
    cluster.second(&mut scheduler);
    assert!(
        flood[..8]
            .iter()
            .all(|lease| cluster.status(*lease) == LeaseStatus::Active)
    );
    let asked: Vec<LeaseId> = (0..4).map(|_| cluster.request_of("green", 1, Plan::OnDemand)).collect();
    let stamp = Timestamp(cluster.now_ms);
    let queue: Vec<LeaseId> = cluster.state().queue(stamp, 6).iter().map(|lease| lease.id()).collect();
    // Blue has eight devices: green is served until it has as many.
    assert_eq!(queue[..4], asked[..], "{queue:?}");
    assert_eq!(queue[4..], flood[8..10], "{queue:?}");
    let place = |tenant: &str, priority| {
        cluster
            .state()
            .queue_before(stamp, &name(tenant), Plan::OnDemand, priority)
    };
    assert_eq!((place("green", 0), place("blue", 0), place("blue", 1)), (4, 36, 0));
    (0..70).for_each(|_| cluster.second(&mut scheduler));
    assert!(asked.iter().all(|lease| cluster.status(*lease) == LeaseStatus::Active));
}

#[test]
fn what_was_had_long_ago_counts_less_and_who_has_waited_an_hour_goes_before_the_younger() {
    let mut cluster = Cluster::of_today(&[(2, "a100")]);
    let mut scheduler = Scheduler::new();
    cluster.duration = Span::seconds(3_000);
    let held = cluster.request_of("blue", 2, Plan::OnDemand);
    (0..3).for_each(|_| cluster.second(&mut scheduler));
    cluster
        .apply(operator(), Command::ReleaseLease { lease: held })
        .unwrap();
    cluster.stop(held);
    cluster.duration = Span::seconds(7_200);
    let now = cluster.request_of("green", 2, Plan::OnDemand);
    cluster.second(&mut scheduler);
    assert_eq!(cluster.status(now), LeaseStatus::Active);
    let oldest = cluster.request_of("green", 2, Plan::OnDemand);
    cluster.now_ms += 60_000;
    let blue = cluster.request_of("blue", 2, Plan::OnDemand);
    let order = |cluster: &Cluster| -> Vec<LeaseId> {
        let queue = cluster.state().queue(Timestamp(cluster.now_ms), 9);
        queue.iter().map(|lease| lease.id()).collect()
    };
    // Green has the devices now, blue had them for three seconds.
    assert_eq!(order(&cluster), [blue, oldest]);
    cluster.now_ms += 3_600_000 - 60_000;
    assert_eq!(order(&cluster), [oldest, blue]);
    let had = |cluster: &Cluster| cluster.state().usage_of(&name("blue")).had(Timestamp(cluster.now_ms));
    let before = had(&cluster);
    cluster.now_ms += 6 * 3_600_000;
    assert!(
        (before / 2).abs_diff(had(&cluster)) <= 1,
        "it fades by half in six hours"
    );
}

#[test]
fn a_tenant_with_limits_is_planned_within_them_and_told_so() {
    let mut cluster = Cluster::of_today(&[(8, "a100")]);
    let mut scheduler = Scheduler::new();
    let limits = |devices_max| Command::SetLimits {
        tenant: name("blue"),
        limits: vec![Limit::Model(Box::new(ModelLimit {
            model: name("a100"),
            devices_max,
        }))],
    };
    cluster.apply(operator(), limits(3)).unwrap();
    let first = cluster.request_of("blue", 2, Plan::OnDemand);
    let second = cluster.request_of("blue", 2, Plan::OnDemand);
    cluster.second(&mut scheduler);
    assert_eq!(cluster.status(first), LeaseStatus::Active);
    assert_eq!(cluster.status(second), LeaseStatus::Pending);
    let told = cluster.reason(second).unwrap();
    assert_eq!(told, "the limits of tenant blue leave 1 a100; 2 devices asked");
    let explained = explain::lease(cluster.state(), cluster.state().leases.get(&second).unwrap());
    assert_eq!(explained.reason.unwrap().to_string(), told);
    // It keeps nothing from others.
    let other = cluster.request_of("green", 6, Plan::OnDemand);
    cluster.second(&mut scheduler);
    assert_eq!(cluster.status(other), LeaseStatus::Active);
    cluster.apply(operator(), limits(1)).unwrap();
    cluster.second(&mut scheduler);
    assert_eq!(
        cluster.status(first),
        LeaseStatus::Active,
        "a limit that is lowered stops nothing"
    );
    cluster.apply(operator(), limits(u32::MAX)).unwrap();
    cluster
        .apply(operator(), Command::ReleaseLease { lease: other })
        .unwrap();
    (0..3).for_each(|_| cluster.second(&mut scheduler));
    assert_eq!(cluster.status(second), LeaseStatus::Active);
}

#[test]
fn spot_gives_way_to_on_demand_as_little_as_will_do_and_comes_back_when_there_is_room() {
    let mut cluster = Cluster::of_today(&[(4, "a100"), (4, "a100")]);
    let mut scheduler = Scheduler::new();
    cluster.duration = Span::seconds(3_600);
    let spot: Vec<LeaseId> = (0..8).map(|_| cluster.request_of("blue", 1, Plan::Spot)).collect();
    cluster.second(&mut scheduler);
    let asked = cluster.request_of("green", 2, Plan::OnDemand);
    cluster.now_ms += 10_000;
    assert_eq!(
        preempted(&cluster.settle(&mut scheduler)),
        NOBODY,
        "spot has its shortest time"
    );
    cluster.now_ms += 20_000;
    let gone = preempted(&cluster.settle(&mut scheduler));
    assert_eq!(gone.len(), 2, "{gone:?}");
    // While they stop, no more have to, and a new leader thinks so too.
    cluster.now_ms += 40_000;
    assert_eq!(preempted(&cluster.settle(&mut scheduler)), NOBODY);
    assert_eq!(preempted(&cluster.settle(&mut Scheduler::new())), NOBODY);
    for lease in &gone {
        assert_eq!(cluster.status(*lease), LeaseStatus::Migrating);
        cluster.stop(*lease);
        cluster.settle(&mut scheduler);
    }
    assert_eq!(cluster.status(asked), LeaseStatus::Placed);
    assert!(
        gone.iter()
            .all(|lease| cluster.status(*lease) == LeaseStatus::Migrating)
    );
    cluster.start(asked);
    // Nothing but spot may be taken, and not for spot.
    let more = cluster.request_of("blue", 8, Plan::Spot);
    cluster.now_ms += 60_000;
    assert_eq!(preempted(&cluster.settle(&mut scheduler)), NOBODY);
    cluster
        .apply(operator(), Command::ReleaseLease { lease: more })
        .unwrap();
    cluster
        .apply(operator(), Command::ReleaseLease { lease: asked })
        .unwrap();
    cluster.stop(asked);
    cluster.settle(&mut scheduler);
    assert!(gone.iter().all(|lease| cluster.status(*lease) == LeaseStatus::Placed));
    assert!(
        spot.iter()
            .all(|lease| cluster.state().leases.get(lease).unwrap().failed_attempts == 0)
    );
}

#[test]
fn a_spot_gang_that_gives_way_takes_nothing_back_before_the_other_has_its_place() {
    let mut cluster = Cluster::of_today(&[(4, "a100"), (4, "a100")]);
    let mut scheduler = Scheduler::new();
    cluster.duration = Span::seconds(3_600);
    let gang = cluster.request_of("blue", 8, Plan::Spot);
    cluster.second(&mut scheduler);
    cluster.now_ms += 31_000;
    let asked = cluster.request_of("green", 6, Plan::OnDemand);
    assert_eq!(preempted(&cluster.settle(&mut scheduler)), [gang]);
    for at in 0..100 {
        cluster.now_ms += 1_000;
        let said = cluster.settle(&mut scheduler);
        assert_eq!(preempted(&said), NOBODY);
        match at {
            30 => cluster.stop_on(gang, NodeId(1)),
            60 => cluster.stop_on(gang, NodeId(2)),
            _ => {}
        }
        let placed = cluster.status(asked) == LeaseStatus::Placed;
        assert_eq!(placed, at > 60, "second {at}: {:?}", cluster.reason(asked));
    }
    assert_eq!(cluster.status(gang), LeaseStatus::Migrating);
}
