package forward

// Class is what happens to requests of one key.
type Class uint8

// The classes. A key without a rule is forwarded as Opaque when the pool's brokers list it: vendors have keys of their
// own above 10000 (clients.md R24).
const (
	// Opaque: to one broker, never retried: nothing is known about it.
	Opaque Class = iota
	// Read: any broker answers and asking twice is harmless, so another one is asked when the first does not answer.
	Read
	// Once: to one broker, once.
	Once
	// Write: changes the cluster; once, and only where the VIP allows it.
	Write
	// Leader: belongs to a partition's leader; refused with NOT_LEADER_OR_FOLLOWER per partition.
	Leader
	// Coordinator: belongs to a group's or transaction's coordinator; refused with NOT_COORDINATOR.
	Coordinator
	// Internal: brokers and controllers speak it among themselves; closed.
	Internal
)

// Rules has the class of every key that has one. It is the table that docs/ANSWERS.md shows.
var Rules = map[int16]Class{
	0:  Leader,      // Produce
	1:  Leader,      // Fetch
	2:  Leader,      // ListOffsets
	4:  Internal,    // LeaderAndISR
	5:  Internal,    // StopReplica
	6:  Internal,    // UpdateMetadata
	7:  Internal,    // ControlledShutdown
	8:  Coordinator, // OffsetCommit
	9:  Coordinator, // OffsetFetch
	10: Read,        // FindCoordinator
	11: Coordinator, // JoinGroup
	12: Coordinator, // Heartbeat
	13: Coordinator, // LeaveGroup
	14: Coordinator, // SyncGroup
	15: Read,        // DescribeGroups
	16: Read,        // ListGroups: one broker's answer, as it is at a broker
	17: Once,        // SaslHandshake: a broker without SASL says so itself
	19: Write,       // CreateTopics
	20: Write,       // DeleteTopics
	21: Write,       // DeleteRecords
	22: Once,        // InitProducerID: fences a transactional producer, so never twice
	23: Leader,      // OffsetForLeaderEpoch
	24: Coordinator, // AddPartitionsToTxn
	25: Coordinator, // AddOffsetsToTxn
	26: Coordinator, // EndTxn
	27: Internal,    // WriteTxnMarkers
	28: Coordinator, // TxnOffsetCommit
	29: Read,        // DescribeACLs
	30: Write,       // CreateACLs
	31: Write,       // DeleteACLs
	32: Read,        // DescribeConfigs
	33: Write,       // AlterConfigs
	34: Write,       // AlterReplicaLogDirs
	35: Read,        // DescribeLogDirs
	36: Once,        // SaslAuthenticate
	37: Write,       // CreatePartitions
	38: Write,       // CreateDelegationToken
	39: Write,       // RenewDelegationToken
	40: Write,       // ExpireDelegationToken
	41: Read,        // DescribeDelegationToken
	42: Write,       // DeleteGroups
	43: Write,       // ElectLeaders
	44: Write,       // IncrementalAlterConfigs
	45: Write,       // AlterPartitionAssignments
	46: Read,        // ListPartitionReassignments
	47: Write,       // OffsetDelete
	48: Read,        // DescribeClientQuotas
	49: Write,       // AlterClientQuotas
	50: Read,        // DescribeUserSCRAMCredentials
	51: Write,       // AlterUserSCRAMCredentials
	52: Internal,    // Vote
	53: Internal,    // BeginQuorumEpoch
	54: Internal,    // EndQuorumEpoch
	55: Read,        // DescribeQuorum
	56: Internal,    // AlterPartition
	57: Write,       // UpdateFeatures
	58: Internal,    // Envelope
	59: Internal,    // FetchSnapshot
	61: Read,        // DescribeProducers
	62: Internal,    // BrokerRegistration
	63: Internal,    // BrokerHeartbeat
	64: Write,       // UnregisterBroker
	65: Read,        // DescribeTransactions
	66: Read,        // ListTransactions
	67: Internal,    // AllocateProducerIDs
	68: Coordinator, // ConsumerGroupHeartbeat
	69: Read,        // ConsumerGroupDescribe
	70: Internal,    // ControllerRegistration
	71: Once,        // GetTelemetrySubscriptions: gives out client instance ids
	72: Once,        // PushTelemetry
	73: Internal,    // AssignReplicasToDirs
	74: Read,        // ListConfigResources
	75: Read,        // DescribeTopicPartitions
	76: Coordinator, // ShareGroupHeartbeat
	77: Read,        // ShareGroupDescribe
	78: Leader,      // ShareFetch
	79: Leader,      // ShareAcknowledge
	80: Write,       // AddRaftVoter
	81: Write,       // RemoveRaftVoter
	82: Internal,    // UpdateRaftVoter
	83: Internal,    // InitializeShareGroupState
	84: Internal,    // ReadShareGroupState
	85: Internal,    // WriteShareGroupState
	86: Internal,    // DeleteShareGroupState
	87: Internal,    // ReadShareGroupStateSummary
	88: Coordinator, // StreamsGroupHeartbeat
	89: Read,        // StreamsGroupDescribe
	90: Read,        // DescribeShareGroupOffsets
	91: Write,       // AlterShareGroupOffsets
	92: Write,       // DeleteShareGroupOffsets
	93: Coordinator, // StreamsGroupTopologyDescriptionUpdate
	94: Write,       // UnregisterController
}
