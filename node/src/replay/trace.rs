//! Nodes and requests in the formats of the openb trace (Alibaba's cluster-trace-gpu-v2023), as the packer takes them.
//!
//! Nodes: `sn, cpu_milli, memory_mib, gpu, model`. Requests: `name, cpu_milli, memory_mib, num_gpu, gpu_milli` and, if
//! there, `gpu_spec` (`A|B`: accepted models, empty: any). The one rule: nodes are numbered in the order of their names,
//! so that the order of lines decides nothing.

use std::path::Path;

use super::table::{Row, Table, TableError, shown};
use crate::scheduler::pack::{Group, Kind, Models, Request, WHOLE};

/// Most models: they are bits of a set.
const MODELS_MAX: usize = 128;
/// Most devices of one node.
const NODE_DEVICES_MAX: u64 = 1024;
/// Most milli over all devices, so that sums of sums stay far from overflow.
const MILLI_MAX: u64 = 1 << 40;

/// One node of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeLine {
    /// Its name.
    pub name: String,
    /// Model of its devices, by number.
    pub model: u8,
    /// How many.
    pub devices: u16,
    /// CPU, in thousandths of a core.
    pub cpu_milli: u32,
    /// Memory, in MiB.
    pub memory_mib: u32,
}

/// All nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventory {
    /// Nodes, by name.
    pub nodes: Vec<NodeLine>,
    /// Names of models.
    pub models: Vec<String>,
}

/// All requests, in the order of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trace {
    /// What is asked for.
    pub requests: Vec<Request>,
}

impl Inventory {
    /// Reads a file of nodes.
    ///
    /// # Errors
    /// When it cannot be read or holds a mistake.
    pub fn read(path: &Path) -> Result<Self, TableError> {
        let table = Table::open(path)?;
        let mut inventory = Self::default();
        let mut last = None;
        let mut milli = 0_u64;
        for row in table.rows() {
            let row = row?;
            let node = inventory.node(&table, &row)?;
            milli += u64::from(node.devices) * u64::from(WHOLE);
            if milli > MILLI_MAX {
                let what = format!("the devices add up to more than {MILLI_MAX} milli");
                return Err(row.wrong(table.column("gpu")?, what));
            }
            inventory.nodes.push(node);
            last = Some(row);
        }
        inventory.nodes.sort_by(|a, b| a.name.cmp(&b.name));
        let twice = inventory.nodes.windows(2).find(|pair| pair[0].name == pair[1].name);
        if let (Some(pair), Some(last)) = (twice, last) {
            let what = format!("node {} is there twice", shown(&pair[0].name));
            return Err(last.wrong(table.column("sn")?, what));
        }
        Ok(inventory)
    }

    fn node(&mut self, table: &Table, row: &Row<'_>) -> Result<NodeLine, TableError> {
        let devices = row.number(table.column("gpu")?, 0..=NODE_DEVICES_MAX)?;
        let column = table.column("model")?;
        let name = row.text(column);
        if devices > 0 && name.is_empty() {
            return Err(row.wrong(column, "devices without a model"));
        }
        Ok(NodeLine {
            name: row.text(table.column("sn")?).to_owned(),
            model: if devices == 0 {
                0
            } else {
                self.model(row, column, name)?
            },
            devices: u16::try_from(devices).unwrap_or(u16::MAX),
            cpu_milli: narrow(row, table.column("cpu_milli")?)?,
            memory_mib: narrow(row, table.column("memory_mib")?)?,
        })
    }

    fn model(&mut self, row: &Row<'_>, column: usize, name: &str) -> Result<u8, TableError> {
        let at = self.models.iter().position(|known| known == name).unwrap_or_else(|| {
            self.models.push(name.to_owned());
            self.models.len() - 1
        });
        let number = u8::try_from(at).ok().filter(|_| at < MODELS_MAX);
        number.ok_or_else(|| row.wrong(column, format!("more than {MODELS_MAX} models")))
    }

    /// Milli of all devices.
    #[must_use]
    pub fn milli(&self) -> u64 {
        self.nodes
            .iter()
            .map(|node| u64::from(node.devices) * u64::from(WHOLE))
            .sum()
    }
}

impl NodeLine {
    /// The node as the packer takes it.
    #[must_use]
    pub fn kind(&self) -> Kind {
        let group = Group {
            model: self.model,
            devices: self.devices,
        };
        Kind {
            groups: if self.devices == 0 { Vec::new() } else { vec![group] },
            zone: 0,
            last: false,
        }
    }
}

impl Trace {
    /// Reads a file of requests for the nodes of an inventory.
    ///
    /// # Errors
    /// When it cannot be read or holds a mistake.
    pub fn read(path: &Path, inventory: &mut Inventory) -> Result<Self, TableError> {
        let table = Table::open(path)?;
        let requests = table
            .rows()
            .map(|row| request(&table, &row?, inventory))
            .collect::<Result<_, _>>()?;
        Ok(Self { requests })
    }
}

fn request(table: &Table, row: &Row<'_>, inventory: &mut Inventory) -> Result<Request, TableError> {
    let devices = row.number(table.column("num_gpu")?, 0..=NODE_DEVICES_MAX)?;
    let least = u64::from(devices > 0);
    let milli = row.number(table.column("gpu_milli")?, least..=u64::from(WHOLE))?;
    let mut models = Models::ANY;
    if let Some(column) = table
        .find("gpu_spec")
        .filter(|column| devices > 0 && !row.text(*column).is_empty())
    {
        for name in row.text(column).split('|') {
            if name.is_empty() {
                return Err(row.wrong(column, "a model without a name"));
            }
            models.0 |= 1 << inventory.model(row, column, name)?;
        }
    }
    Ok(Request {
        models,
        ..Request::of(
            u16::try_from(devices).unwrap_or(u16::MAX),
            if devices == 0 {
                0
            } else {
                u16::try_from(milli).unwrap_or(WHOLE)
            },
            narrow(row, table.column("cpu_milli")?)?,
            narrow(row, table.column("memory_mib")?)?,
        )
    })
}

fn narrow(row: &Row<'_>, column: usize) -> Result<u32, TableError> {
    let number = row.number(column, 0..=u64::from(u32::MAX))?;
    Ok(u32::try_from(number).unwrap_or(u32::MAX))
}
