//! Where leases go and how they leave: parts of a card, nodes that are emptied.

use super::*;

/// Waits until the rules that every node knows are in force: parts and drains need them.
async fn rules(cluster: &LocalCluster) {
    until(cluster, &["cluster", "status"], |status| {
        (status["machine_level"].as_u64() >= Some(2)).then_some(())
    })
    .await;
}

/// The types of a lease's events, or of the whole cluster's, in order; those of one epoch carry it.
async fn course(cluster: &LocalCluster, lease: Option<&str>, last: &str) -> Vec<String> {
    let mut arguments = vec!["events", "--after", "0"];
    arguments.extend(lease.iter().flat_map(|lease| ["--lease", lease]));
    until(cluster, &arguments, |page| {
        let word = |event: &Value| {
            let kind = event["type"]
                .as_str()
                .unwrap()
                .trim_start_matches("holdfast.")
                .to_owned();
            match event["data"]["epoch"].as_u64() {
                Some(epoch) => format!("{kind} {epoch}"),
                None => kind,
            }
        };
        let course: Vec<String> = page.as_array()?.iter().map(word).collect();
        course.iter().any(|word| word == last).then_some(course)
    })
    .await
}

#[tokio::test]
async fn a_card_is_shared_up_to_the_whole_and_each_part_pays_its_part_over_a_restart() {
    let _alone = alone().await;
    let mut cluster = cluster(1).await;
    rules(&cluster).await;
    let work = [
        "sh",
        "-c",
        "echo $HOLDFAST_GPU_SHARE $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE $CUDA_VISIBLE_DEVICES; sleep 600",
    ];
    let mut leases = Vec::new();
    for shape in ["1xa100:40%", "1xa100:60%", "1xa100:12.5%"] {
        leases.push(lease(&cluster, shape, &work).await);
    }
    let mut shown = Vec::new();
    for lease in &leases {
        shown.push(status(&cluster, lease, "active").await);
    }
    let card = |shown: &Value| shown["members"][0]["devices"][0].as_str().unwrap().to_owned();
    assert_eq!(card(&shown[0]), card(&shown[1]), "{shown:?}");
    assert_ne!(card(&shown[0]), card(&shown[2]), "{shown:?}");
    let rate = |shown: &Value| shown["micros_per_hour"].as_u64().unwrap();
    let whole = rate(&shown[0]) + rate(&shown[1]);
    assert_eq!(
        [0, 1, 2].map(|at| rate(&shown[at]) * 1000),
        [400, 600, 125].map(|milli| whole * milli)
    );
    let told = format!("40 40 {}\n", card(&shown[0]));
    let printed = async { while text(&run(&cluster, &["logs", &leases[0]]).await.stdout) != told {} };
    tokio::time::timeout(WITHIN, printed).await.unwrap();

    // A whole card waits, and is told why; a part that fits beside the others does not.
    let waits = lease(&cluster, "1xa100", &["true"]).await;
    let reason = until(&cluster, &["show", &waits], |shown| {
        shown["waits_because"].as_str().map(str::to_owned)
    })
    .await;
    assert!(reason.contains("busy: 0 of 2 devices free"), "{reason}");
    cluster.kill_daemon(0).await;
    cluster.restart(0).await.unwrap();
    let parts = |list: &Value| {
        let gpus = list["gpus"].as_array()?;
        let part = |part: &Value| Some((part["lease"].as_str()?.to_owned(), part["milli"].as_u64()?));
        let of = |gpu: &Value| -> Option<Vec<_>> { gpu["parts"].as_array()?.iter().map(part).collect() };
        let all: Option<Vec<_>> = gpus.iter().map(of).collect();
        all.map(|all| all.concat())
    };
    let mut held = until(&cluster, &["gpus"], parts).await;
    held.sort();
    let mut expected: Vec<(String, u64)> = leases.iter().cloned().zip([400, 600, 125]).collect();
    expected.sort();
    assert_eq!(held, expected);
    assert!(run(&cluster, &["release", &leases[2]]).await.status.success());
    status(&cluster, &waits, "ended").await;
    let refused = run(&cluster, &["lease", "2xa100:40%", "--for", "1h", "--yes", "--", "true"]).await;
    let error = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(64), "{error}");
    assert!(
        error.contains("at character 8: only one device can be shared"),
        "{error}"
    );
}

#[tokio::test]
async fn a_drained_node_is_empty_when_it_says_so_even_when_its_leader_is_killed_meanwhile() {
    let _alone = alone().await;
    let mut cluster = cluster(3).await;
    rules(&cluster).await;
    let may_end = cluster.path().join("may-end");
    // It takes its time to end, and says when it does.
    let script = format!(
        "trap 'while [ ! -e {path} ]; do sleep 0.05; done; exit 0' TERM; while :; do sleep 0.05; done",
        path = may_end.display()
    );
    // The leader that is killed has no part in it: the loss of a node would be another story.
    let old = leader(&cluster).await;
    let (first, second) = [("h100", "rtx4090"), ("a100", "rtx4090"), ("a100", "h100")][old];
    let shape = format!("1x({first}|{second})");
    let order = [
        "lease", &shape, "--for", "10m", "--grace", "5m", "--yes", "--detach", "--", "sh", "-c", &script,
    ];
    let moved = cluster.json(&order).await.unwrap()["lease"]
        .as_str()
        .unwrap()
        .to_owned();
    let begun = status(&cluster, &moved, "active").await;
    let from = begun["members"][0]["node"].as_str().unwrap().to_owned();
    let stays = lease(&cluster, &format!("1x{second}"), &["sleep", "600"]).await;
    status(&cluster, &stays, "active").await;

    let drain = ["node", "drain", &from, "--deadline", "1s", "-m", "fan", "--detach"];
    cluster.json(&drain).await.unwrap();
    cluster.kill_daemon(old).await;
    cluster.restart(old).await.unwrap();
    // It was told to stop and is not gone: the node is not drained.
    let course_so_far = course(&cluster, Some(&moved), "lease-evicted 1").await;
    assert!(
        !course_so_far.contains(&"allocation-ended 1".to_owned()),
        "{course_so_far:?}"
    );
    let path = ["node", "drain", &from, "--watch"];
    let mut watching = cluster.command(&path).stdout(Stdio::piped()).spawn().unwrap();
    assert!(watching.try_wait().unwrap().is_none());
    std::fs::write(&may_end, "").unwrap();
    let watched = tokio::time::timeout(WITHIN, watching.wait()).await.unwrap().unwrap();
    assert!(watched.success());
    let shown = until(&cluster, &["show", &moved], |shown| {
        (shown["status"] == "active" && shown["epoch"] == 2).then(|| shown.clone())
    })
    .await;
    assert_ne!(shown["members"][0]["node"].as_str(), Some(from.as_str()), "{shown}");

    let all = course(&cluster, None, "node-drained").await;
    let place = |word: &str| all.iter().position(|other| other == word);
    let order = ["node-draining", "lease-evicted 1", "allocation-ended 1", "node-drained"].map(place);
    assert!(order.iter().all(Option::is_some) && order.is_sorted(), "{all:?}");
    let starts: Vec<&String> = all.iter().filter(|word| *word == "start-accepted 2").collect();
    assert_eq!(
        (starts.len(), place("start-accepted 2") > order[2]),
        (1, true),
        "{all:?}"
    );
    // What had no part in it was left alone, and takes no part in the failures of the lease that had to move.
    assert_eq!(status(&cluster, &stays, "active").await["epoch"], 1);
    assert!(run(&cluster, &["uncordon", &from]).await.status.success());
    let after = run(&cluster, &["node", "drain", &from, "--watch"]).await;
    assert!(!after.status.success() && text(&after.stderr).contains("not being drained"));
}

#[tokio::test]
async fn limits_are_told_when_they_are_met_and_spot_gives_way_to_who_pays_the_whole_price() {
    let _alone = alone().await;
    let cluster = cluster(1).await;
    rules(&cluster).await;
    let order = ["lease", "2xa100", "--for", "1h", "--yes", "--detach", "--", "true"];
    for (limit, told) in [
        (
            ["--model", "a100=1"],
            "2 devices asked, 1 left of what tenant default may hold of a100",
        ),
        (
            ["--per-hour", "0.50"],
            "an hour asked, 0.50 left of what tenant default may spend",
        ),
    ] {
        let set = |limit: [&'static str; 2]| [["tenant", "limit", "default"].as_slice(), &limit].concat();
        assert!(run(&cluster, &set(limit)).await.status.success());
        let refused = run(&cluster, &order).await;
        let error = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(65), "{error}");
        assert!(error.contains(told), "{error}");
        let any = if limit[0] == "--model" { "a100=any" } else { "any" };
        assert!(run(&cluster, &set([limit[0], any])).await.status.success());
    }

    let order = [
        "lease", "2xa100", "--plan", "spot", "--for", "10m", "--yes", "--detach", "--", "sleep", "600",
    ];
    let spot = cluster.json(&order).await.unwrap()["lease"]
        .as_str()
        .unwrap()
        .to_owned();
    let cheap = status(&cluster, &spot, "active").await;
    let asked = lease(&cluster, "1xa100", &["sleep", "2"]).await;
    let queue = until(&cluster, &["queue"], |queue| {
        (queue["waiting"] == 1).then(|| queue.clone())
    })
    .await;
    assert_eq!(
        (
            &queue["leases"][0]["lease"],
            &queue["leases"][0]["place"],
            &queue["tenants"][0]["devices"]
        ),
        (&asked.as_str().into(), &1.into(), &2.into()),
        "{queue}"
    );
    let paid = status(&cluster, &asked, "active").await;
    let rate = |shown: &Value| shown["micros_per_hour"].as_u64().unwrap();
    assert!(rate(&cheap) < rate(&paid) * 2, "{cheap} {paid}");
    let told = text(&run(&cluster, &["why", &spot]).await.stdout);
    assert!(
        told.contains(&format!("it is spot and gives its devices up to {asked}")),
        "{told}"
    );
    status(&cluster, &asked, "ended").await;
    let again = status(&cluster, &spot, "active").await;
    assert_eq!(again["epoch"], 2, "{again}");
}
