//! The GPU models that Holdfast knows by name: what people may ask for, what a card reports, what it costs.
//!
//! The command line and the API parse requests with it, the simulator makes cards from it, and `init` takes the first
//! prices from it. The rule kept here: a model has one name; every alias and every driver string leads to it.

use holdfast_proto::id::Name;
use holdfast_proto::lease::Plan;
use holdfast_proto::tariff::{Price, Tariff};

/// How the cards of one machine reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fabric {
    /// All cards of a machine have full mutual bandwidth.
    NvLink,
    /// Each card only reaches the host.
    Pcie,
}

/// One model.
#[derive(Debug, PartialEq, Eq)]
pub struct GpuModel {
    /// The name in requests, on the screen and in prices.
    pub name: &'static str,
    /// What the driver calls it.
    pub driver_name: &'static str,
    /// Other spellings that people use, lower case and without separators.
    pub aliases: &'static [&'static str],
    /// Memory, MiB.
    pub memory_mib: u32,
    /// CUDA compute capability times ten.
    pub compute_capability: u16,
    /// How cards of one machine reach each other.
    pub fabric: Fabric,
    /// It corrects memory errors and counts them.
    pub ecc: bool,
    /// It has a memory temperature sensor.
    pub memory_sensor: bool,
    /// Power limit, milliwatts.
    pub power_limit_mw: u32,
    /// Idle power, milliwatts.
    pub power_idle_mw: u32,
    /// Core temperature at which the card slows down, °C.
    pub slowdown_c: i32,
    /// Highest clock of the multiprocessors, MHz.
    pub sm_clock_mhz: u32,
    /// Clock of the memory, MHz.
    pub memory_clock_mhz: u32,
    /// Default list price of one card and hour on demand, micro-units.
    pub micros_per_hour: u64,
}

/// A row of the table, so that the table reads as one.
macro_rules! model {
    ($name:literal, $driver:literal, $aliases:expr, $memory:literal, $capability:literal, $fabric:ident, $ecc:literal,
     $power:literal / $idle:literal W, $slowdown:literal C, $sm:literal / $mem:literal MHz, $price:literal) => {
        GpuModel {
            name: $name,
            driver_name: $driver,
            aliases: &$aliases,
            memory_mib: $memory,
            compute_capability: $capability,
            fabric: Fabric::$fabric,
            ecc: $ecc,
            memory_sensor: $ecc,
            power_limit_mw: $power * 1000,
            power_idle_mw: $idle * 1000,
            slowdown_c: $slowdown,
            sm_clock_mhz: $sm,
            memory_clock_mhz: $mem,
            micros_per_hour: $price,
        }
    };
}

/// All models, ordered by name. Memory, power and clocks are the vendor's data sheets; prices are only defaults.
pub static MODELS: &[GpuModel] = &[
    model!("a10", "NVIDIA A10", ["a1024gb"], 23_028, 86, Pcie, true, 150 / 16 W, 98 C, 1695 / 6251 MHz, 600_000),
    model!("a100", "NVIDIA A100-SXM4-80GB", ["a10080gb", "a100sxm", "a100sxm4"], 81_920, 80, NvLink, true,
        400 / 55 W, 92 C, 1410 / 1593 MHz, 1_800_000),
    model!("a100-40gb", "NVIDIA A100-SXM4-40GB", ["a10040gb", "a100sxm440gb"], 40_960, 80, NvLink, true,
        400 / 50 W, 92 C, 1410 / 1215 MHz, 1_300_000),
    model!("a6000", "NVIDIA RTX A6000", ["rtxa6000"], 49_140, 86, Pcie, true, 300 / 22 W, 93 C, 2100 / 8001 MHz, 800_000),
    model!("b200", "NVIDIA B200", ["b200sxm"], 183_359, 100, NvLink, true,
        1000 / 140 W, 95 C, 1965 / 3996 MHz, 5_500_000),
    model!("h100", "NVIDIA H100 80GB HBM3", ["h10080gb", "h100sxm", "h100sxm5"], 81_559, 90, NvLink, true,
        700 / 70 W, 92 C, 1980 / 2619 MHz, 2_900_000),
    model!("h200", "NVIDIA H200", ["h200sxm", "h200141gb"], 143_771, 90, NvLink, true,
        700 / 75 W, 92 C, 1980 / 3201 MHz, 3_600_000),
    model!("l4", "NVIDIA L4", ["l424gb"], 23_034, 89, Pcie, true, 72 / 12 W, 97 C, 2040 / 6251 MHz, 500_000),
    model!("l40s", "NVIDIA L40S", ["l40s48gb"], 46_068, 89, Pcie, true, 350 / 33 W, 95 C, 2520 / 9001 MHz, 1_100_000),
    model!("rtx3090", "NVIDIA GeForce RTX 3090", ["3090", "geforcertx3090"], 24_576, 86, Pcie, false,
        350 / 25 W, 95 C, 2100 / 9751 MHz, 250_000),
    model!("rtx4090", "NVIDIA GeForce RTX 4090", ["4090", "geforcertx4090"], 24_564, 89, Pcie, false,
        450 / 22 W, 95 C, 3105 / 10501 MHz, 450_000),
    model!("rtx5090", "NVIDIA GeForce RTX 5090", ["5090", "geforcertx5090"], 32_607, 120, Pcie, false,
        575 / 28 W, 95 C, 3090 / 14001 MHz, 650_000),
    model!("t4", "Tesla T4", ["t416gb", "teslat4"], 15_360, 75, Pcie, true, 70 / 10 W, 96 C, 1590 / 5001 MHz, 250_000),
    model!("v100", "Tesla V100-SXM2-32GB", ["v10032gb", "teslav100", "v100sxm2"], 32_768, 70, NvLink, true,
        300 / 42 W, 90 C, 1530 / 877 MHz, 700_000),
];

/// A name that is no model's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no GPU model is called {asked:?}; there are {}", known_names())]
pub struct UnknownModel {
    /// What was asked for, at most 64 characters of it, control characters replaced.
    pub asked: String,
}

/// Finds a model by its name, an alias, or the driver's name, whatever the case and the separators.
///
/// # Errors
/// When there is none; the error names those that exist.
pub fn find(name: &str) -> Result<&'static GpuModel, UnknownModel> {
    let wanted = plain(name);
    let is_it = |model: &&GpuModel| {
        plain(model.name) == wanted || plain(model.driver_name) == wanted || model.aliases.contains(&wanted.as_str())
    };
    let stripped = wanted.strip_prefix("nvidia").unwrap_or(&wanted).to_owned();
    let by_stripped = |model: &&GpuModel| plain(model.name) == stripped || model.aliases.contains(&stripped.as_str());
    let found = MODELS.iter().find(is_it).or_else(|| MODELS.iter().find(by_stripped));
    found.ok_or_else(|| UnknownModel { asked: printable(name) })
}

/// Lower case, letters and digits only.
fn plain(name: &str) -> String {
    name.chars()
        .filter(char::is_ascii_alphanumeric)
        .take(64)
        .map(|c| c.to_ascii_lowercase())
        .collect()
}

fn printable(text: &str) -> String {
    text.chars()
        .take(64)
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

/// All names, for messages.
pub fn known_names() -> String {
    let names: Vec<&str> = MODELS.iter().map(|model| model.name).collect();
    names.join(", ")
}

impl GpuModel {
    /// The name as the vocabulary's type.
    pub fn model_name(&self) -> Name {
        self.name
            .parse()
            .expect("the catalog's names keep the alphabet; a test parses each")
    }
}

/// What spot costs of the price on demand, in per cent: its devices may be taken back.
const SPOT_PERCENT: u64 = 40;

/// The prices that a new cluster starts with: every model on demand and spot, in US dollars.
pub fn first_tariff() -> Tariff {
    let price = |model: &GpuModel, plan, percent| Price {
        model: model.model_name(),
        plan,
        micros_per_device_hour: model.micros_per_hour * percent / 100,
    };
    let prices = |model| {
        [
            price(model, Plan::OnDemand, 100),
            price(model, Plan::Spot, SPOT_PERCENT),
        ]
    };
    Tariff {
        version: 1,
        currency: "USD".to_owned(),
        prices: MODELS.iter().flat_map(prices).collect(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn every_name_alias_and_driver_name_leads_to_its_model_and_to_no_other() {
        let mut seen = std::collections::BTreeMap::new();
        for model in MODELS {
            assert_eq!(model.model_name().as_str(), model.name);
            for spelling in [model.name, model.driver_name].iter().chain(model.aliases) {
                assert_eq!(find(spelling).unwrap().name, model.name, "{spelling}");
                assert!(
                    seen.insert(plain(spelling), model.name)
                        .is_none_or(|other| other == model.name)
                );
            }
        }
        assert!(MODELS.is_sorted_by_key(|model| model.name));
    }

    #[test]
    fn spelling_does_not_matter() {
        for (spelling, name) in [
            ("H100", "h100"),
            ("RTX 4090", "rtx4090"),
            ("rtx-4090", "rtx4090"),
            ("4090", "rtx4090"),
            ("nvidia-h200", "h200"),
            ("A100_40GB", "a100-40gb"),
        ] {
            assert_eq!(find(spelling).unwrap().name, name);
        }
    }

    #[test]
    fn an_unknown_model_names_those_that_exist() {
        let text = find("h1\u{1b}00x").unwrap_err().to_string();
        assert!(text.contains("a100, ") && text.contains("v100"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
        assert!(find("").is_err());
        assert!(find(&"9".repeat(10_000)).is_err());
    }

    #[test]
    fn the_first_tariff_prices_every_model_in_order() {
        let tariff = first_tariff();
        assert_eq!(tariff.prices.len(), 2 * MODELS.len());
        assert!(
            tariff
                .prices
                .is_sorted_by_key(|price| (price.model.clone(), price.plan))
        );
        assert!(tariff.prices.iter().all(|price| price.micros_per_device_hour > 0));
    }
}
