//! The course of a run, rule by rule.

use super::*;

fn course(policy: DeadlinePolicy) -> Course {
    let mut spec = Spec::new("r", "root", vec!["true".into()], 1_000);
    spec.policy = policy;
    spec.freeze_max_ms = 500;
    spec.grace_ms = 100;
    let mut course = Course::new(&spec);
    course.launched();
    course
}

fn cause(course: &Course) -> Option<EndCause> {
    match course.phase() {
        Phase::Killing { cause } | Phase::Ended { cause } | Phase::Stopping { cause, .. } => Some(cause),
        _ => None,
    }
}

#[test]
fn at_the_deadline_the_policy_decides() {
    let check = |policy, expected| assert_eq!(course(policy).tick(1_000), expected, "{policy:?}");
    check(DeadlinePolicy::Freeze, Some(Act::Freeze));
    check(DeadlinePolicy::Stop, Some(Act::Kill));
    check(DeadlinePolicy::Keep, None);
    assert_eq!(course(DeadlinePolicy::Freeze).tick(999), None);
}

#[test]
fn a_renewal_moves_the_deadline_and_never_backwards() {
    let mut course = course(DeadlinePolicy::Freeze);
    let renew = |until_boot_ms| Order::Deadline {
        until_boot_ms,
        run_until_boot_ms: None,
    };
    assert_eq!(course.order(renew(2_000), 500), Ok(None));
    assert_eq!(course.order(renew(1_500), 600), Ok(None));
    assert_eq!((course.next_wake(), course.tick(1_999)), (Some(2_000), None));
    assert_eq!(course.tick(2_000), Some(Act::Freeze));
}

#[test]
fn a_renewal_alone_does_not_thaw_and_a_lapsed_one_is_refused() {
    let mut course = course(DeadlinePolicy::Freeze);
    course.tick(1_000);
    course
        .order(
            Order::Deadline {
                until_boot_ms: 3_000,
                run_until_boot_ms: None,
            },
            1_100,
        )
        .expect("a renewal is taken");
    assert_eq!(course.phase(), Phase::Frozen { since_boot_ms: 1_000 });
    assert_eq!(
        course.order(Order::Thaw { until_boot_ms: 1_200 }, 1_200),
        Err(OrderRefused::Lapsed)
    );
    assert_eq!(
        course.order(Order::Thaw { until_boot_ms: 3_000 }, 1_200),
        Ok(Some(Act::Thaw))
    );
    assert_eq!((course.phase(), course.frozen_ms(9_000)), (Phase::Running, 200));
}

#[test]
fn a_freeze_ends_after_freeze_max_in_a_kill() {
    let mut course = course(DeadlinePolicy::Freeze);
    course.tick(1_000);
    assert_eq!(course.next_wake(), Some(1_500));
    assert_eq!((course.tick(1_499), course.tick(1_500)), (None, Some(Act::Kill)));
    assert_eq!(
        (cause(&course), course.frozen_ms(2_000)),
        (Some(EndCause::FreezeMax), 500)
    );
}

#[test]
fn a_stop_is_term_then_grace_then_kill_and_the_deadline_cuts_the_grace() {
    let mut in_time = course(DeadlinePolicy::Freeze);
    assert_eq!(
        in_time.order(Order::Stop { grace_ms: 200 }, 100),
        Ok(Some(Act::Terminate))
    );
    assert_eq!((in_time.tick(299), in_time.tick(300)), (None, Some(Act::Kill)));
    assert_eq!(cause(&in_time), Some(EndCause::Stopped));

    let mut late = course(DeadlinePolicy::Freeze);
    assert_eq!(
        late.order(Order::Stop { grace_ms: 5_000 }, 900),
        Ok(Some(Act::Terminate))
    );
    assert_eq!((late.next_wake(), late.tick(1_000)), (Some(1_000), Some(Act::Kill)));
}

#[test]
fn a_second_stop_may_shorten_the_grace_only() {
    let mut course = course(DeadlinePolicy::Freeze);
    course.order(Order::Stop { grace_ms: 300 }, 0).expect("a stop is taken");
    assert_eq!(course.order(Order::Stop { grace_ms: 900 }, 10), Ok(None));
    assert_eq!(course.next_wake(), Some(300));
    course.order(Order::Stop { grace_ms: 50 }, 20).expect("a stop is taken");
    assert_eq!(course.next_wake(), Some(70));
}

#[test]
fn frozen_work_is_stopped_by_a_kill_because_a_stop_does_not_permit_it_to_run() {
    let mut course = course(DeadlinePolicy::Freeze);
    course.tick(1_000);
    assert_eq!(
        course.order(Order::Stop { grace_ms: 9_000 }, 1_100),
        Ok(Some(Act::Kill))
    );
    assert_eq!(cause(&course), Some(EndCause::Stopped));
    assert_eq!(
        course.order(Order::Thaw { until_boot_ms: 9_000 }, 1_200),
        Err(OrderRefused::Ending)
    );
}

#[test]
fn run_until_binds_under_every_policy() {
    for policy in [DeadlinePolicy::Freeze, DeadlinePolicy::Stop, DeadlinePolicy::Keep] {
        let mut course = course(policy);
        let renewal = Order::Deadline {
            until_boot_ms: 9_000,
            run_until_boot_ms: Some(700),
        };
        course.order(renewal, 100).expect("a renewal is taken");
        assert_eq!(
            (course.tick(699), course.tick(700)),
            (None, Some(Act::Terminate)),
            "{policy:?}"
        );
        assert_eq!(
            (cause(&course), course.tick(800)),
            (Some(EndCause::RunUntil), Some(Act::Kill))
        );
    }
}

#[test]
fn run_until_ends_frozen_work_at_once() {
    let mut course = course(DeadlinePolicy::Freeze);
    course
        .order(
            Order::Deadline {
                until_boot_ms: 0,
                run_until_boot_ms: Some(1_200),
            },
            0,
        )
        .expect("a renewal is taken");
    course.tick(1_000);
    assert_eq!((course.next_wake(), course.tick(1_200)), (Some(1_200), Some(Act::Kill)));
}

#[test]
fn an_exit_sweeps_what_is_left_and_the_first_cause_stays() {
    let mut exited = course(DeadlinePolicy::Freeze);
    assert_eq!(exited.main_ended(EndCause::Exited, 5), Some(Act::Kill));
    assert_eq!(exited.main_ended(EndCause::GuardLost, 6), None);
    assert_eq!(exited.order(Order::Kill, 7), Ok(None));
    exited.emptied();
    assert_eq!(
        exited.phase(),
        Phase::Ended {
            cause: EndCause::Exited
        }
    );

    let mut stopped = course(DeadlinePolicy::Freeze);
    stopped
        .order(Order::Stop { grace_ms: 300 }, 0)
        .expect("a stop is taken");
    stopped.main_ended(EndCause::Exited, 10);
    assert_eq!(cause(&stopped), Some(EndCause::Stopped));
}

#[test]
fn nothing_is_launched_under_a_deadline_that_has_passed() {
    let mut spec = Spec::new("r", "root", vec!["true".into()], 1_000);
    assert!(Course::new(&spec).may_launch(999));
    assert!(!Course::new(&spec).may_launch(1_000));
    spec.policy = DeadlinePolicy::Keep;
    assert!(Course::new(&spec).may_launch(1_000));
    spec.run_until_boot_ms = Some(900);
    assert!(!Course::new(&spec).may_launch(1_000));
}

#[test]
fn a_freeze_that_does_not_take_hold_becomes_a_kill() {
    let mut course = course(DeadlinePolicy::Freeze);
    course.tick(1_000);
    assert_eq!(course.freeze_failed(1_250), Some(Act::Kill));
    assert_eq!(cause(&course), Some(EndCause::FreezeFailed));
}
