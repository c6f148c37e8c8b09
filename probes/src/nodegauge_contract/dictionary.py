"""The preset dictionary of compressed results: text that every result repeats, known to both ends beforehand.

Frozen: a message names it by its checksum, and a reader without exactly this text cannot unpack it.  Members
that came later compress without it; a new dictionary needs a new prefix (see `codec`).
"""

from __future__ import annotations

DICTIONARY = (
    b"251-253 269-271 NVML_ERROR_GPU_IS_LOST NVML_ERROR_INVALID_ARGUMENT NVML_ERROR_NO_DATA NVML_ERROR_NO_"
    b"PERMISSION NVML_ERROR_RESET_REQUIRED NVML_ERROR_UNKNOWN NVML_VALUE_NOT_AVAILABLE link is not active "
    b"no memory sensor (reads 0) numa_node is -1: the firmware does not say NVML_ERROR_FUNCTION_NOT_FOUND "
    b'TNS{"schema":"nodegauge.dev/probe-result","version":"1.0","probe":"health","run":"","node":"","durat'
    b'ion_ms":3000,"host":{"boot_id":"-4","boottime_ms":0},"system":{"driver":"550.54.15","nvml":"12.550.5'
    b'4.15","cuda":12040},"gpus":{"~":{"index":[0,1],"uuid":["GPU-","GPU-"],"name":["NVIDIA H100 80GB HBM3'
    b'","NVIDIA H100 80GB HBM3"],"pci":["0000:00:00.0","0000:10:00.0"],"minor":[0,1],"serial":["0","0"],"v'
    b'bios":["00.00.","00.00."],"architecture":[9,9],"compute_capability":["9.0","9.0"],"module_id":[1,2],'
    b'"memory_mib":[81559,81559],"persistence":[true,true],"mig":[0,0],"cpus":["0-55,112-167","0-55,112-16'
    b'7"],"memory_nodes":["0","0"],"numa_node":[0,0],"gpu_numa_id":{"~":{"unavailable":["NVML_ERROR_NOT_SU'
    b'PPORTED","NVML_ERROR_NOT_SUPPORTED"]}},"pcie":{"~":{"generation":[5,5],"width":[16,16],"max_generati'
    b'on":[5,5],"max_width":[16,16]}},"links":[{"~":{"links":[[0,4],[1,5]],"state":[1,1],"p2p":[1,1],"remo'
    b'te":["0000:00:00.0","0000:00:00.0"],"remote_type":[2,2],"mbps":[26562,26562],"version":[6,6]}},{"~":'
    b'{"links":[[0,4],[1,5]],"state":[1,1],"p2p":[1,1],"remote":["0000:00:00.0","0000:00:00.0"],"remote_ty'
    b'pe":[2,2],"mbps":[26562,26562],"version":[6,6]}}],"switch_links":[18,18],"fabric":{"~":{"state":[3,3'
    b'],"status":[0,0],"cluster_uuid":["00000000-0000-0000-0000-000000000000","00000000-0000-0000-0000-000'
    b'000000000"],"clique":[0,0],"health_mask":[0,0],"health_summary":{"~":{"unavailable":["not in this dr'
    b'iver\'s version of the call","not in this driver\'s version of the call"]}}}},"temperature":{"~":{"gpu'
    b'":[33,33],"memory":[41,41],"shutdown":{"~":{"unavailable":["NVML_ERROR_NOT_SUPPORTED","NVML_ERROR_NO'
    b'T_SUPPORTED"]}},"slowdown":{"~":{"unavailable":["NVML_ERROR_NOT_SUPPORTED","NVML_ERROR_NOT_SUPPORTED'
    b'"]}},"memory_max":{"~":{"unavailable":["NVML_ERROR_NOT_SUPPORTED","NVML_ERROR_NOT_SUPPORTED"]}},"gpu'
    b'_max":{"~":{"unavailable":["NVML_ERROR_NOT_SUPPORTED","NVML_ERROR_NOT_SUPPORTED"]}},"margin":{"~":{"'
    b'unavailable":["NVML_ERROR_FUNCTION_NOT_FOUND","NVML_ERROR_FUNCTION_NOT_FOUND"]}},"tlimit_shutdown":['
    b'-8,-8],"tlimit_slowdown":[-2,-2],"tlimit_memory_max":[0,0],"tlimit_gpu_max":[0,0]}},"power":{"~":{"u'
    b'sage_mw":[72020,72020],"average_mw":[72020,72020],"instant_mw":[72020,72020],"enforced_limit_mw":[70'
    b'0000,700000],"default_limit_mw":[700000,700000],"min_limit_mw":[200000,200000],"max_limit_mw":[70000'
    b'0,700000],"energy_mj":[0,0],"source":[0,0]}},"clocks":{"~":{"sm_mhz":[345,345],"memory_mhz":[2619,26'
    b'19],"max_sm_mhz":[1980,1980],"max_memory_mhz":[2619,2619],"pstate":[0,0]}},"events":{"~":{"supported'
    b'":[511,511],"read":[13,13],"seen":[[{"bit":1,"samples":13,"longest":13}],[{"bit":1,"samples":13,"lon'
    b'gest":13}]]}},"counters":{"~":{"trio":{"~":{"unavailable":["driver 550.54.15 has no such counters (t'
    b'hey came with 575)","driver 550.54.15 has no such counters (they came with 575)"]}},"sw_power_cap_ns'
    b'":[0,0],"sync_boost_ns":[0,0],"sw_thermal_ns":{"~":{"unavailable":["driver 550.54.15 has no such cou'
    b'nters (they came with 575)","driver 550.54.15 has no such counters (they came with 575)"]}},"hw_ther'
    b'mal_ns":{"~":{"unavailable":["driver 550.54.15 has no such counters (they came with 575)","driver 55'
    b'0.54.15 has no such counters (they came with 575)"]}},"power_brake_ns":{"~":{"unavailable":["driver '
    b'550.54.15 has no such counters (they came with 575)","driver 550.54.15 has no such counters (they ca'
    b'me with 575)"]}},"thermal_violation_ns":[0,0],"low_utilization_ns":{"~":{"unavailable":["NVML_ERROR_'
    b'NOT_SUPPORTED","NVML_ERROR_NOT_SUPPORTED"]}}}},"window":{"~":{"seconds":[3.0,3.0],"samples":[13,13],'
    b'"utilization":{"~":{"min":[0,0],"median":[0,0],"max":[0,0]}},"temperature":{"~":{"min":[33,33],"medi'
    b'an":[33,33],"max":[33,33]}},"power_mw":{"~":{"min":[72020,72020],"median":[72020,72020],"max":[72020'
    b',72020]}},"sm_mhz":{"~":{"min":[345,345],"median":[345,345],"max":[345,345]}},"pstate":{"~":{"min":['
    b'0,0],"median":[0,0],"max":[0,0]}}}},"error":[null,null]}},"pairs":{"ancestor":[[-1,40],[40,-1]],"rea'
    b'd":[[-1,0],[0,-1]],"write":[[-1,0],[0,-1]],"nvlink":[[-1,0],[0,-1]]},"nics":{"names":["mlx5_0","mlx5'
    b'_1"],"pci":["0000:00:00.0","0000:10:00.0"],"to_gpu":[["PXB","NODE"],["PXB","NODE"]],"to_nic":[["X","'
    b'PIX"],["PIX","X"]]},"problem":null}'
)
