/** A room to begin with, in the language of the reader. */
import type { Schema } from '@/api/types'
import type { Language } from '@/i18n/text'

export const EXAMPLES: Record<Language, Schema<'RoomDocument'>> = {
  en: {
    version: 1,
    title: 'Open day',
    task: 'Plan the open day of a small observatory: 120 visitors, one evening, 600 euros. Agree on a programme that fits on one page. The editor writes it down and ends it with the word AGREED.',
    max_rounds: 3,
    policy: 'round_robin',
    stop: { any: [{ rounds: 3 }, { phrase: 'AGREED', seat: 'Editor' }] },
    agents: [
      {
        name: 'Planner',
        role: 'proposes the programme',
        temperature: 0.7,
        tools: [],
        system_prompt: 'Propose a programme with times. At most five lines. Change it where others object.',
      },
      {
        name: 'Treasurer',
        role: 'watches the money',
        tools: ['python_eval'],
        system_prompt:
          'Check what the programme costs. Calculate with python_eval, then say in two sentences whether 600 euros are enough and what to drop.',
      },
      {
        name: 'Guest',
        role: 'speaks for the visitors',
        tools: [],
        system_prompt: 'Say in two sentences what visitors, among them children, would miss or not understand.',
      },
      {
        name: 'Editor',
        role: 'writes the result',
        temperature: 0.2,
        tools: [],
        system_prompt:
          'If an objection is open, name it in one sentence and ask the others to settle it. If none is open, write the programme in at most six lines and end with the word AGREED.',
      },
    ],
  },
  zh: {
    version: 1,
    title: '开放日',
    task: '为一座小天文台策划开放日：120 位访客，一个晚上，预算 600 欧元。商定一份一页纸的活动安排，由编辑写下来，并以“通过”二字结尾。',
    max_rounds: 3,
    policy: 'round_robin',
    stop: { any: [{ rounds: 3 }, { phrase: '通过', seat: '编辑' }] },
    agents: [
      {
        name: '策划',
        role: '提出活动安排',
        temperature: 0.7,
        tools: [],
        system_prompt: '提出带时间的活动安排，最多五行。有人反对时加以修改。',
      },
      {
        name: '财务',
        role: '管理预算',
        tools: ['python_eval'],
        system_prompt: '核算活动的费用。用 python_eval 计算，然后用两句话说明 600 欧元是否够用、应删去什么。',
      },
      {
        name: '访客',
        role: '代表访客',
        tools: [],
        system_prompt: '用两句话说明访客（包括儿童）会缺少什么、不明白什么。',
      },
      {
        name: '编辑',
        role: '写出结果',
        temperature: 0.2,
        tools: [],
        system_prompt: '如果还有反对意见，用一句话指出并请大家解决；如果没有，用最多六行写下安排，并以“通过”二字结尾。',
      },
    ],
  },
}
