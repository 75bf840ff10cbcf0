/** The sample room and the sample task. The demo provider has the answers, which depend on the names here. */
import type { Schema } from '@/api/types'

const PLAN = 'You plan the open day of the observatory with others.'

export function sampleRoom(provider: string): Schema<'RoomDocument'> {
  return {
    version: 1,
    title: 'Open day (sample)',
    task: 'Plan the open day of a small observatory: 120 visitors, one evening, 600 euros. Agree on a programme that fits on one page. The editor writes it down and ends it with the word AGREED.',
    max_rounds: 2,
    policy: 'parallel',
    stop: { any: [{ rounds: 2 }, { phrase: 'AGREED', seat: 'Editor' }] },
    agents: [
      {
        name: 'Planner',
        role: 'proposes the programme',
        provider,
        tools: [],
        system_prompt: `${PLAN} Propose a programme with times. At most five lines. Change it where others object.`,
      },
      {
        name: 'Treasurer',
        role: 'watches the money',
        provider,
        tools: ['process_data'],
        system_prompt: `${PLAN} Check what the programme costs. Add it up with process_data, then say in two sentences whether 600 euros are enough and what to drop.`,
      },
      {
        name: 'Guest',
        role: 'speaks for the visitors',
        provider,
        tools: [],
        system_prompt: `${PLAN} Say in two sentences what visitors, among them children, would miss or not understand.`,
      },
      {
        name: 'Editor',
        role: 'writes the result',
        provider,
        tools: [],
        system_prompt: `${PLAN} If a question is open, name it. If none is open, write the programme in at most six lines and end with the word AGREED.`,
      },
    ],
  }
}

export function sampleTask(provider: string): Schema<'TaskDocument'> {
  return {
    version: 1,
    name: 'Balcony power station (sample)',
    goal: 'Advise a household with a south-facing balcony whether a small solar power station of 800 watts pays off: what it yields, what it costs, what is allowed, and what to buy first.',
    provider,
    max_concurrent_steps: 3,
    steps: [
      {
        id: 'yield',
        name: 'Estimate the yield',
        goal: 'The yield of 800 watts on a south-facing balcony in kilowatt hours a year, with the assumptions.',
        required_tools: ['process_data'],
      },
      { id: 'cost', name: 'Collect the costs', goal: 'What modules, inverter and mounting cost together, as a range in euros.', required_tools: [] },
      { id: 'rules', name: 'List the rules', goal: 'What a tenant has to register and to ask for, as a list.', required_tools: [] },
      {
        id: 'payback',
        name: 'Calculate the payback time',
        goal: 'After how many years the station has paid for itself, at 0.32 euros a kilowatt hour.',
        depends_on: ['yield', 'cost'],
        required_tools: [],
      },
      {
        id: 'shopping',
        name: 'Write the shopping list',
        goal: 'What to buy, in the order of buying, with the price range of each.',
        depends_on: ['payback', 'rules'],
        required_tools: [],
        require_approval: true,
      },
    ],
  }
}
